// SPDX-License-Identifier: Apache-2.0
// The built-in models: the numbers of their published configurations, and the tensors that result from them.

#include "plan_models.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>
#include <utility>

#include "arguments.hpp"
#include "plan_numbers.hpp"
#include "suggestion.hpp"

namespace cli {

namespace {

// Differences between model families other than sizes.
enum trait : unsigned {
    tied = 1,        // the output layer is the embedding
    qkv_bias = 2,    // queries, keys and values have biases
    output_bias = 4, // so has the attention's output
    qk_norm = 8,     // queries and keys are normalised, each head with the same weights
    fused = 16,      // queries, keys and values are one tensor, gate and up projection another
    stacked = 32,    // all experts of a layer are one tensor, with biases, and so is the router
    sinks = 64,      // a parameter for each head that softmax adds to its sum
};

struct configuration {
    char const* name;
    char const* source;
    std::vector<char const*> aliases;
    unsigned traits;
    std::size_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, experts, active_experts;
};

std::vector<configuration> const& configurations()
{
    static std::vector<configuration> const all{
        {"Qwen2.5-3B", "Qwen/Qwen2.5-3B", {}, tied | qkv_bias, 2048, 36, 16, 2, 128, 11008, 151936, 0, 0},
        {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B", {"llama-3-8b"}, 0, 4096, 32, 32, 8, 128, 14336, 128256, 0, 0},
        {"Phi-4", "microsoft/phi-4", {}, fused, 5120, 40, 40, 10, 128, 17920, 100352, 0, 0},
        {"Qwen3-14B", "Qwen/Qwen3-14B", {}, qk_norm, 5120, 40, 40, 8, 128, 17408, 151936, 0, 0},
        {"GPT-OSS-20B",
         "openai/gpt-oss-20b",
         {},
         qkv_bias | output_bias | stacked | sinks,
         2880,
         24,
         64,
         8,
         64,
         2880,
         201088,
         32,
         4},
        {"Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B", {}, qk_norm, 2048, 48, 32, 4, 128, 768, 151936, 128, 8},
        {"Seed-OSS-36B", "ByteDance-Seed/Seed-OSS-36B-Base", {}, qkv_bias, 5120, 64, 80, 8, 128, 27648, 155136, 0, 0},
        {"Llama-3-70B",
         "meta-llama/Meta-Llama-3-70B",
         {"llama-3.1-70b", "llama-3.3-70b", "llama-70b"},
         0,
         8192,
         80,
         64,
         8,
         128,
         28672,
         128256,
         0,
         0},
    };
    return all;
}

// Lower case and without punctuation, except a point between two numbers, so that 3.1-8 differs from 31-8 and 3-18.
std::string plain(std::string_view text)
{
    std::string result;
    bool gap = false;
    for (char const c : text) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
            gap = true;
            continue;
        }
        auto const digit = [](char x) { return std::isdigit(static_cast<unsigned char>(x)) != 0; };
        if (gap && !result.empty() && digit(result.back()) && digit(c))
            result += '.';
        result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        gap = false;
    }
    return result;
}

std::string plain_model(std::string_view name)
{
    std::string text = plain(name.substr(name.rfind('/') + 1));
    for (std::string_view const suffix : {"instruct", "base", "it"})
        if (text.ends_with(suffix) && text.size() > suffix.size())
            text.erase(text.size() - suffix.size());
    if (text.starts_with("meta"))
        text.erase(0, 4);
    return text;
}

class tensor_list {
public:
    explicit tensor_list(std::vector<model_tensor>& tensors) : tensors_(tensors) {}
    void add(std::string const& name, std::vector<std::size_t> dims)
    {
        std::size_t elems = 1;
        for (std::size_t const d : dims)
            elems *= d;
        tensors_.push_back({name, std::move(dims), elems});
    }
    // Adds the weight of a linear layer, whose dimensions are outputs and inputs, and its bias.
    void add_linear(std::string const& name, std::size_t outputs, std::size_t inputs, bool has_bias = false)
    {
        add(name + ".weight", {outputs, inputs});
        if (has_bias)
            add(name + ".bias", {outputs});
    }

private:
    std::vector<model_tensor>& tensors_;
};

void add_attention(tensor_list& list, std::string const& prefix, configuration const& c)
{
    auto const has = [&](trait flag) { return (c.traits & flag) != 0; };
    std::size_t const query = c.heads * c.head_dim;
    std::size_t const key = c.kv_heads * c.head_dim;
    if (has(sinks))
        list.add(prefix + "sinks", {c.heads});
    if (has(fused)) {
        list.add_linear(prefix + "o_proj", c.hidden, query);
        list.add_linear(prefix + "qkv_proj", query + 2 * key, c.hidden);
        return;
    }
    list.add_linear(prefix + "q_proj", query, c.hidden, has(qkv_bias));
    list.add_linear(prefix + "k_proj", key, c.hidden, has(qkv_bias));
    list.add_linear(prefix + "v_proj", key, c.hidden, has(qkv_bias));
    list.add_linear(prefix + "o_proj", c.hidden, query, has(output_bias));
    if (has(qk_norm))
        for (char const* const norm : {"q_norm.weight", "k_norm.weight"})
            list.add(prefix + norm, {c.head_dim});
}

void add_mlp(tensor_list& list, std::string const& prefix, configuration const& c)
{
    std::size_t const inner = c.intermediate;
    if ((c.traits & stacked) != 0) {
        list.add_linear(prefix + "router", c.experts, c.hidden, true);
        list.add(prefix + "experts.gate_up_proj", {c.experts, c.hidden, 2 * inner});
        list.add(prefix + "experts.gate_up_proj_bias", {c.experts, 2 * inner});
        list.add(prefix + "experts.down_proj", {c.experts, inner, c.hidden});
        list.add(prefix + "experts.down_proj_bias", {c.experts, c.hidden});
        return;
    }
    if ((c.traits & fused) != 0) {
        list.add_linear(prefix + "gate_up_proj", 2 * inner, c.hidden);
        list.add_linear(prefix + "down_proj", c.hidden, inner);
        return;
    }
    if (c.experts != 0)
        list.add_linear(prefix + "gate", c.experts, c.hidden);
    for (std::size_t e = 0; e < std::max<std::size_t>(c.experts, 1); ++e) {
        std::string const expert = c.experts == 0 ? prefix : prefix + "experts." + std::to_string(e) + ".";
        list.add_linear(expert + "gate_proj", inner, c.hidden);
        list.add_linear(expert + "up_proj", inner, c.hidden);
        list.add_linear(expert + "down_proj", c.hidden, inner);
    }
}

model make(configuration const& c)
{
    model result;
    result.name = c.name;
    result.source = std::string("configuration published as ") + c.source;
    result.layers = c.layers;
    result.hidden = c.hidden;
    result.vocab = c.vocab;
    result.query = c.heads * c.head_dim;
    result.key_value = 2 * c.kv_heads * c.head_dim;
    result.feed_forward = c.intermediate * std::max<std::size_t>(c.active_experts, 1);
    tensor_list list(result.tensors);
    list.add_linear("model.embed_tokens", c.vocab, c.hidden);
    for (std::size_t i = 0; i < c.layers; ++i) {
        std::string const layer = "model.layers." + std::to_string(i) + ".";
        add_attention(list, layer + "self_attn.", c);
        add_mlp(list, layer + "mlp.", c);
        list.add(layer + "input_layernorm.weight", {c.hidden});
        list.add(layer + "post_attention_layernorm.weight", {c.hidden});
    }
    list.add("model.norm.weight", {c.hidden});
    if ((c.traits & tied) == 0)
        list.add_linear("lm_head", c.vocab, c.hidden);
    std::size_t idle = 0; // parameters of experts that are inactive for a token
    for (model_tensor const& tensor : result.tensors) {
        result.params += tensor.elems;
        result.largest_tensor = std::max(result.largest_tensor, tensor.elems);
        if (tensor.name.find(".experts.") != std::string::npos)
            idle += tensor.elems / c.experts * (c.experts - c.active_experts);
        if (tensor.name.starts_with("model.layers.0."))
            result.layer_params += tensor.elems;
    }
    result.ends_params = c.vocab * c.hidden;
    // A tied embedding is the output layer's matrix as well, and multiplies there.
    result.computed_params = result.params - idle - ((c.traits & tied) != 0 ? 0 : result.ends_params);
    if ((c.traits & stacked) != 0)
        result.source += ", its experts in 16 bits as they are trained";
    return result;
}

} // namespace

model known_model(std::string const& name)
{
    std::string const plain_name = plain_model(name);
    for (configuration const& configuration : configurations()) {
        bool const is_alias = std::any_of(configuration.aliases.begin(), configuration.aliases.end(),
                                          [&](char const* alias) { return plain_model(alias) == plain_name; });
        if (is_alias || plain_model(configuration.name) == plain_name)
            return make(configuration);
    }
    std::string known;
    std::vector<std::pair<std::string, std::string>> names;
    for (configuration const& configuration : configurations()) {
        known += std::string(known.empty() ? "" : ", ") + configuration.name;
        names.emplace_back(plain_model(configuration.name), configuration.name);
        for (char const* const alias : configuration.aliases)
            names.emplace_back(plain_model(alias), configuration.name);
    }
    std::string const suggestion = did_you_mean(plain_name, names);
    throw usage_error("no model is known by the name '" + name + "'" +
                      (suggestion.empty() ? "; known are " : suggestion + " Known are ") + known +
                      ". Describe another by --params N --layers N --hidden N [--vocab N], or by --shapes FILE");
}

std::vector<std::string> model_names()
{
    std::vector<std::string> names;
    for (configuration const& known : configurations())
        names.emplace_back(known.name);
    return names;
}

std::string list_of_models()
{
    std::string text = "models\n";
    for (configuration const& known : configurations()) {
        std::string line = std::string("  ") + known.name;
        line.resize(18, ' ');
        std::string const params = grouped(make(known).params);
        text += line + std::string(16 - params.size(), ' ') + params + " parameters   " + known.source + "\n";
    }
    return text;
}

} // namespace cli
