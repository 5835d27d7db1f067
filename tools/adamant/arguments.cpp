// SPDX-License-Identifier: Apache-2.0
// Definitions of arguments.hpp.
#include "arguments.hpp"

#include <algorithm>
#include <charconv>

#include "suggestion.hpp"

namespace cli {

namespace {

option const* find_option(command const& cmd, std::string_view name)
{
    for (option const& entry : cmd.options)
        if (entry.name == name)
            return &entry;
    return nullptr;
}

std::string without_dashes(std::string_view name)
{
    name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
    return std::string(name);
}

[[noreturn]] void refuse_option(command const& cmd, std::string const& name)
{
    std::vector<std::pair<std::string, std::string>> names;
    for (option const& entry : cmd.options)
        names.emplace_back(without_dashes(entry.name), entry.name);
    std::string const suggestion = did_you_mean(without_dashes(name), names);
    throw usage_error("'" + name + "' is not understood here" + (suggestion.empty() ? ";" : suggestion) + " `adamant " +
                      std::string(cmd.name) + " --help` lists the options");
}

} // namespace

arguments::arguments(command const& cmd, std::vector<std::string> const& words) : command_(cmd)
{
    for (std::size_t i = 0; i < words.size(); ++i) {
        std::string const& word = words[i];
        if (word.size() < 2 || word.front() != '-') {
            if (cmd.words == nullptr)
                throw usage_error("'" + word + "' is not understood here: `adamant " + std::string(cmd.name) +
                                  "` takes options only; `adamant " + std::string(cmd.name) + " --help` lists them");
            arguments_.push_back({"", word, word});
            continue;
        }
        std::size_t const equals = word.find('=');
        std::string const name = word.substr(0, equals);
        option const* const known = find_option(cmd, name);
        if (known == nullptr)
            refuse_option(cmd, name);
        argument parsed{known->name, std::nullopt, word};
        bool const next = i + 1 < words.size() && !words[i + 1].starts_with("--");
        if (equals != std::string::npos)
            parsed.value = word.substr(equals + 1);
        else if (!known->value.empty() && next)
            parsed.value = words[++i];
        else if (!known->value.empty() && !known->may_stand_alone)
            throw usage_error(name + " needs a value" +
                              (i + 1 < words.size() ? ", but '" + words[i + 1] + "' follows" : ""));
        if (known->value.empty() && parsed.value)
            throw usage_error(name + " takes no value, but '" + *parsed.value + "' is given");
        arguments_.push_back(std::move(parsed));
    }
}

std::vector<arguments::argument> arguments::take(std::string_view name)
{
    if (!name.empty() && find_option(command_, name) == nullptr)
        throw std::logic_error("adamant: " + std::string(command_.name) + " reads " + std::string(name) +
                               ", which is missing in its list of options");
    auto const end =
        std::stable_partition(arguments_.begin(), arguments_.end(), [&](argument const& g) { return g.name != name; });
    std::vector<argument> matches(std::make_move_iterator(end), std::make_move_iterator(arguments_.end()));
    arguments_.erase(end, arguments_.end());
    return matches;
}

std::optional<arguments::argument> arguments::take_one(std::string_view name)
{
    std::vector<argument> matches = take(name);
    if (matches.size() > 1)
        throw usage_error(std::string(name) + " is given more than once");
    return matches.empty() ? std::nullopt : std::optional(std::move(matches.front()));
}

bool arguments::flag(std::string_view name)
{
    return take_one(name).has_value();
}

std::optional<std::string> arguments::value(std::string_view name)
{
    std::optional<argument> const match = take_one(name);
    return match ? match->value : std::nullopt;
}

std::string arguments::value(std::string_view name, std::string_view otherwise, std::string_view bare)
{
    std::optional<argument> const match = take_one(name);
    return !match ? std::string(otherwise) : match->value.value_or(std::string(bare));
}

std::vector<std::string> arguments::values(std::string_view name)
{
    std::vector<std::string> all;
    for (argument& match : take(name))
        all.push_back(*std::move(match.value));
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
    auto const match =
        std::find_if(arguments_.begin(), arguments_.end(), [](argument const& g) { return g.name.empty(); });
    if (match == arguments_.end())
        return std::nullopt;
    std::string result = *std::move(match->value);
    arguments_.erase(match);
    return result;
}

void arguments::check_empty(std::string_view context) const
{
    if (!arguments_.empty())
        throw usage_error("'" + arguments_.front().text + "' is not understood " + std::string(context));
}

} // namespace cli
