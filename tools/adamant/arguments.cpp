// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include <algorithm>
#include <charconv>

#include "suggestion.hpp"

namespace cli {

namespace {

option const* find_option(command const& of, std::string_view name)
{
    for (option const& one : of.options)
        if (one.name == name)
            return &one;
    return nullptr;
}

std::string without_dashes(std::string_view name)
{
    name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
    return std::string(name);
}

[[noreturn]] void refuse_option(command const& of, std::string const& name)
{
    std::vector<std::pair<std::string, std::string>> names;
    for (option const& one : of.options)
        names.emplace_back(without_dashes(one.name), one.name);
    std::string const meant = did_you_mean(without_dashes(name), names);
    throw usage_error("'" + name + "' is not understood here" + (meant.empty() ? ";" : meant) + " `adamant " +
                      std::string(of.name) + " --help` lists the options");
}

} // namespace

arguments::arguments(command const& of, std::vector<std::string> const& words) : of_(of)
{
    for (std::size_t i = 0; i < words.size(); ++i) {
        std::string const& word = words[i];
        if (word.size() < 2 || word.front() != '-') {
            if (of.words == nullptr)
                throw usage_error("'" + word + "' is not understood here: `adamant " + std::string(of.name) +
                                  "` takes options only; `adamant " + std::string(of.name) + " --help` lists them");
            all_.push_back({"", word, word});
            continue;
        }
        std::size_t const equals = word.find('=');
        std::string const name = word.substr(0, equals);
        option const* const known = find_option(of, name);
        if (known == nullptr)
            refuse_option(of, name);
        given one{known->name, std::nullopt, word};
        bool const next = i + 1 < words.size() && !words[i + 1].starts_with("--");
        if (equals != std::string::npos)
            one.value = word.substr(equals + 1);
        else if (!known->value.empty() && next)
            one.value = words[++i];
        else if (!known->value.empty() && !known->may_stand_alone)
            throw usage_error(name + " needs a value" +
                              (i + 1 < words.size() ? ", but '" + words[i + 1] + "' follows" : ""));
        if (known->value.empty() && one.value)
            throw usage_error(name + " takes no value, but '" + *one.value + "' is given");
        all_.push_back(std::move(one));
    }
}

std::vector<arguments::given> arguments::take(std::string_view name)
{
    if (!name.empty() && find_option(of_, name) == nullptr)
        throw std::logic_error("adamant: " + std::string(of_.name) + " reads " + std::string(name) +
                               ", which is missing in its list of options");
    auto const end = std::stable_partition(all_.begin(), all_.end(), [&](given const& g) { return g.name != name; });
    std::vector<given> taken(std::make_move_iterator(end), std::make_move_iterator(all_.end()));
    all_.erase(end, all_.end());
    return taken;
}

std::optional<arguments::given> arguments::take_one(std::string_view name)
{
    std::vector<given> taken = take(name);
    if (taken.size() > 1)
        throw usage_error(std::string(name) + " is given more than once");
    return taken.empty() ? std::nullopt : std::optional(std::move(taken.front()));
}

bool arguments::flag(std::string_view name)
{
    return take_one(name).has_value();
}

std::optional<std::string> arguments::value(std::string_view name)
{
    std::optional<given> const one = take_one(name);
    return one ? one->value : std::nullopt;
}

std::string arguments::value(std::string_view name, std::string_view otherwise, std::string_view bare)
{
    std::optional<given> const one = take_one(name);
    return !one ? std::string(otherwise) : one->value.value_or(std::string(bare));
}

std::vector<std::string> arguments::values(std::string_view name)
{
    std::vector<std::string> all;
    for (given& one : take(name))
        all.push_back(*std::move(one.value));
    return all;
}

std::optional<unsigned> arguments::number(std::string_view name, unsigned least, unsigned most)
{
    std::optional<std::string> const text = value(name);
    if (!text)
        return std::nullopt;
    unsigned result = 0;
    auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), result);
    if (error != std::errc() || end != text->data() + text->size() || result < least || result > most)
        throw usage_error(std::string(name) + " is '" + *text + "', but must be a whole number from " +
                          std::to_string(least) + " to " + std::to_string(most));
    return result;
}

std::optional<std::string> arguments::word()
{
    auto const at = std::find_if(all_.begin(), all_.end(), [](given const& g) { return g.name.empty(); });
    if (at == all_.end())
        return std::nullopt;
    std::string result = *std::move(at->value);
    all_.erase(at);
    return result;
}

void arguments::done(std::string_view where) const
{
    if (!all_.empty())
        throw usage_error("'" + all_.front().written + "' is not understood " + std::string(where));
}

} // namespace cli
