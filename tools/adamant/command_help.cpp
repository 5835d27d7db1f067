// SPDX-License-Identifier: Apache-2.0
// What the list of commands says to people and to the shell.
#include "commands.hpp"

#include <algorithm>
#include <cctype>

namespace cli {

namespace {

constexpr std::size_t help_columns = 80;
constexpr std::size_t most_name_columns = 22; // longer ones have a line of their own

constexpr option help_option{"--help", "", "this text; -h is the same"};

// Lines of text after a prefix, under which the further lines begin.
std::string filled(std::string const& prefix, std::string_view text)
{
    std::string all;
    std::string line = prefix;
    for (std::size_t begin = 0; begin < text.size();) {
        std::size_t const end = std::min(text.find(' ', begin), text.size());
        if (line.size() > prefix.size() && line.size() + 1 + (end - begin) > help_columns) {
            all += line + "\n";
            line.assign(prefix.size(), ' ');
        }
        line += line.size() > prefix.size() ? " " : "";
        line += text.substr(begin, end - begin);
        begin = end + 1;
    }
    return all + line + "\n";
}

std::string shown(option const& one)
{
    std::string text = "  " + std::string(one.name);
    if (one.value.empty())
        return text;
    return text.append(one.may_stand_alone ? " [" : " ").append(one.value).append(one.may_stand_alone ? "]" : "");
}

std::vector<std::string> words_of(std::string_view text)
{
    std::vector<std::string> all;
    for (std::size_t begin = 0; begin < text.size();) {
        std::size_t const end = std::min(text.find(' ', begin), text.size());
        all.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return all;
}

bool begins_with(std::string_view text, std::string_view begin)
{
    auto const same = [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    return text.size() >= begin.size() && std::equal(begin.begin(), begin.end(), text.begin(), same);
}

std::string lines_with(std::string_view begin, std::vector<std::string> const& candidates)
{
    std::string text;
    for (std::string const& one : candidates)
        if (begins_with(one, begin))
            text += one + "\n";
    return text;
}

std::vector<std::string> choices_of(option const& of, std::string_view begin)
{
    std::vector<std::string> all = of.found_choices != nullptr ? of.found_choices() : words_of(of.choices);
    if (of.found_choices != nullptr) // of machines there may be several: 4xGH200
        if (std::size_t const x = begin.find_first_not_of("0123456789"); x != 0 && x != begin.npos && begin[x] == 'x')
            for (std::string& one : all)
                one.insert(0, begin.substr(0, x + 1));
    return all;
}

} // namespace

std::string overview()
{
    std::size_t columns = 0;
    for (command const& one : commands())
        columns = std::max(columns, one.name.size());
    std::string text = "adamant: the optimizer step of offloaded training, on this machine\n\n";
    for (command const& one : commands()) {
        std::string line = "  adamant " + std::string(one.name);
        line.resize(12 + columns, ' ');
        text += line + std::string(one.summary) + "\n";
    }
    return text + "\n`adamant COMMAND --help` says more about one of them; `adamant --version` names\nthe version.\n";
}

std::string help_of(command const& of)
{
    std::string text =
        filled("adamant " + std::string(of.name) + " ", of.synopsis) + "\n" + filled("", of.about) + "\n";
    std::vector<option> all = of.options;
    all.push_back(help_option);
    std::size_t columns = 0;
    for (option const& one : all)
        if (std::size_t const size = shown(one).size(); size <= most_name_columns)
            columns = std::max(columns, size);
    columns += 2;
    for (option const& one : all) {
        std::string prefix = shown(one);
        if (prefix.size() + 2 > columns) {
            text += prefix + "\n";
            prefix.clear();
        }
        prefix.resize(columns, ' ');
        text += filled(prefix, one.help);
    }
    return of.more.empty() ? text : text + "\n" + filled("", of.more);
}

std::string completions(std::vector<std::string> words)
{
    if (words.empty())
        words.emplace_back();
    if (words.back() == "=")
        words.push_back("");
    std::erase(words, "=");
    std::string const last = words.back();
    if (words.size() == 1) {
        std::vector<std::string> all = command_names();
        all.insert(all.end(), {"help", "--help", "--version"});
        return lines_with(last, all);
    }
    if (words.front() == "help")
        return words.size() == 2 ? lines_with(last, command_names()) : "";
    command const* const of = find_command(words.front());
    if (of == nullptr)
        return "";
    for (option const& one : of->options)
        if (words.size() > 2 && words[words.size() - 2] == one.name && !one.value.empty() &&
            !(one.may_stand_alone && last.starts_with("--")))
            return one.value.starts_with("FILE") ? "<file>\n" : lines_with(last, choices_of(one, last));
    if (!last.starts_with("-"))
        return of->words != nullptr ? lines_with(last, of->words()) : "";
    std::vector<std::string> all;
    for (option const& one : of->options)
        all.emplace_back(one.name);
    all.emplace_back(help_option.name);
    return lines_with(last, all);
}

} // namespace cli
