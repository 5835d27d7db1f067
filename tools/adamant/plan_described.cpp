// SPDX-License-Identifier: Apache-2.0
// Models described by options: by a few numbers, or by a file with the shapes of their tensors.

#include "plan_models.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "arguments.hpp"
#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

// Estimates the inner sizes of a layer: queries, keys and values are as wide as the layer, and the MLP's three
// projections have the other parameters, of experts those that are active.
void guess_inner_sizes(model& result, double active_share)
{
    if (result.hidden == 0)
        return;
    result.query = result.hidden;
    result.key_value = 2 * result.hidden;
    auto const layer = static_cast<std::size_t>(active_share * static_cast<double>(result.layer_params));
    std::size_t const attention = product(product(4, result.hidden), result.hidden);
    result.feed_forward = std::max(result.hidden, (layer - std::min(layer, attention)) / (3 * result.hidden));
}

// The name of the layer of a tensor: up to the first part that is a number, as in model.layers.12.mlp.up_proj.weight.
// Empty without a number.
std::string layer_of(std::string_view name)
{
    for (std::size_t begin = 0; begin < name.size();) {
        std::size_t const end = std::min(name.find('.', begin), name.size());
        std::string_view const part = name.substr(begin, end - begin);
        if (!part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; }))
            return std::string(name.substr(0, end));
        begin = end + 1;
    }
    return {};
}

std::size_t active_params(described_model const& description, std::size_t all)
{
    if (description.active_params > all)
        throw usage_error("--active-params is " + grouped(description.active_params) + ", but the model has " +
                          grouped(all) + " parameters");
    return description.active_params != 0 ? description.active_params : all;
}

double share_of(std::size_t part, std::size_t all)
{
    return static_cast<double>(part) / static_cast<double>(all);
}

} // namespace

model make_model(described_model const& description)
{
    for (auto const& [option, value] :
         {std::pair("--params", description.params), std::pair("--layers", description.layers),
          std::pair("--hidden", description.hidden)})
        if (value == 0)
            throw usage_error(std::string(option) + " is missing: a model without a name is described by --params N "
                                                    "--layers N --hidden N [--vocab N], or by --shapes FILE");
    model result;
    result.has_shapes = false;
    result.params = description.params;
    result.layers = description.layers;
    result.hidden = description.hidden;
    result.vocab = description.vocab;
    result.ends_params = product(description.vocab, description.hidden);
    std::size_t const ends = product(2, result.ends_params);
    if (ends + description.layers > description.params)
        throw usage_error("--params is " + grouped(description.params) + ", but " + std::to_string(description.layers) +
                          " layers, and an embedding and an output layer of --vocab x --hidden, " + grouped(ends) +
                          " parameters together, must fit in them");
    auto const add = [&](std::string const& name, std::vector<std::size_t> dims, std::size_t elems) {
        result.tensors.push_back({name, std::move(dims), elems});
        result.largest_tensor = std::max(result.largest_tensor, elems);
    };
    if (result.vocab != 0)
        add("embedding", {description.vocab, description.hidden}, result.ends_params);
    std::size_t remaining = description.params - ends;
    for (std::size_t i = 0; i < description.layers; ++i) {
        std::size_t const elems = remaining / (description.layers - i);
        add("layers." + std::to_string(i), {elems}, elems);
        result.layer_params = std::max(result.layer_params, elems);
        remaining -= elems;
    }
    if (result.vocab != 0)
        add("output", {description.vocab, description.hidden}, result.ends_params);
    result.computed_params =
        description.active_params != 0 ? active_params(description, result.params) : result.params - result.ends_params;
    result.name = "as described";
    result.source =
        "described by --params, --layers and --hidden: equal layers, whose attention is as wide as they are";
    guess_inner_sizes(result, share_of(active_params(description, result.params), result.params));
    return result;
}

model read_model(std::string const& path, described_model const& description)
{
    std::ifstream file(path);
    if (!file)
        throw usage_error("--shapes: " + path + " cannot be opened: " + std::strerror(errno));
    model result;
    std::map<std::string, std::size_t> layers;
    std::map<std::string, std::size_t> lines; // of each name
    std::size_t number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        auto const refuse = [&](std::string const& error) {
            throw usage_error("--shapes: line " + std::to_string(number) + " of " + path + " " + error +
                              "; a line has the name of a tensor and its dimensions, as in: lm_head.weight 32000 4096");
        };
        line.erase(std::min(line.find('#'), line.size()));
        for (char& c : line) // as other programs print them: [32000, 4096], (32000x4096)
            if (c == '\0' || std::strchr(",[]()\t\r:", c) != nullptr)
                c = ' ';
        std::istringstream words(line);
        model_tensor tensor{{}, {}, 1};
        if (!(words >> tensor.name))
            continue;
        for (std::string word; words >> word;)
            for (std::size_t begin = 0; begin <= word.size();) {
                std::size_t const end = std::min(word.find('x', begin), word.size());
                std::size_t dim = 0;
                auto const [stop, error] = std::from_chars(word.data() + begin, word.data() + end, dim);
                if (error != std::errc() || stop != word.data() + end || dim == 0)
                    refuse("has '" + printable(word) + "' for a dimension, which must be a whole number above 0");
                if (dim > 1'000'000'000'000'000 / tensor.elems)
                    refuse("has a tensor of more than 1e15 elements");
                tensor.dims.push_back(dim);
                tensor.elems *= dim;
                begin = end + 1;
            }
        if (tensor.dims.empty())
            refuse("has no dimensions");
        if (auto const [first, is_new] = lines.emplace(tensor.name, number); !is_new)
            refuse("has the tensor '" + printable(tensor.name) + "', which line " + std::to_string(first->second) +
                   " has, too");
        result.params += tensor.elems;
        if (result.params > 1'000'000'000'000'000)
            refuse("brings the model to more than 1e15 parameters");
        if (std::string const layer = layer_of(tensor.name); !layer.empty())
            layers[layer] += tensor.elems;
        else if (tensor.dims.size() == 2)
            result.ends_params = std::max(result.ends_params, tensor.elems);
        result.largest_tensor = std::max(result.largest_tensor, tensor.elems);
        result.tensors.push_back(std::move(tensor));
    }
    if (file.bad() || result.tensors.empty())
        throw usage_error("--shapes: " + path + (file.bad() ? " cannot be read" : " has no tensors") +
                          "; it has a line for each tensor: its name and its dimensions");
    for (auto const& [name, elems] : layers)
        result.layer_params = std::max(result.layer_params, elems);
    result.layers = description.layers != 0 ? description.layers : layers.size();
    if (layers.empty()) // names without numbers: then layers are equal
        result.layer_params = result.params / std::max<std::size_t>(result.layers, 1);
    result.hidden = description.hidden;
    result.vocab = description.vocab;
    result.computed_params = active_params(description, result.params);
    result.name = printable(path);
    result.source = "the shapes are those of the file";
    guess_inner_sizes(result, share_of(result.computed_params, result.params));
    return result;
}

} // namespace cli
