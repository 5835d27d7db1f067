// SPDX-License-Identifier: Apache-2.0
// Help texts, and completion for the shell, from the list of commands.
#include "commands.hpp"

#include <algorithm>
#include <cctype>

namespace cli {

namespace {

constexpr std::size_t help_columns = 80;
constexpr std::size_t most_name_columns = 22; // longer names have a separate line

constexpr option help_option{"--help", "", "this text; -h is the same"};

// Returns lines of text after a prefix; further lines are indented by its width.
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

std::string option_text(option const& entry)
{
    std::string text = "  " + std::string(entry.name);
    if (entry.value.empty())
        return text;
    return text.append(entry.may_stand_alone ? " [" : " ").append(entry.value).append(entry.may_stand_alone ? "]" : "");
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
    for (std::string const& entry : candidates)
        if (begins_with(entry, begin))
            text += entry + "\n";
    return text;
}

std::vector<std::string> choices_of(option const& opt, std::string_view begin)
{
    std::vector<std::string> all = opt.list_choices != nullptr ? opt.list_choices() : words_of(opt.choices);
    if (opt.list_choices != nullptr) // machines may have a number: 4xGH200
        if (std::size_t const x = begin.find_first_not_of("0123456789"); x != 0 && x != begin.npos && begin[x] == 'x')
            for (std::string& entry : all)
                entry.insert(0, begin.substr(0, x + 1));
    return all;
}

} // namespace

std::string overview()
{
    std::size_t columns = 0;
    for (command const& entry : commands())
        columns = std::max(columns, entry.name.size());
    std::string text = "adamant: the optimizer step of offloaded training, on this machine\n\n";
    for (command const& entry : commands()) {
        std::string line = "  adamant " + std::string(entry.name);
        line.resize(12 + columns, ' ');
        text += line + std::string(entry.summary) + "\n";
    }
    return text + "\n`adamant COMMAND --help` says more about one of them; `adamant --version` names\nthe version.\n";
}

std::string help_of(command const& cmd)
{
    std::string text =
        filled("adamant " + std::string(cmd.name) + " ", cmd.synopsis) + "\n" + filled("", cmd.description) + "\n";
    std::vector<option> all = cmd.options;
    all.push_back(help_option);
    std::size_t columns = 0;
    for (option const& entry : all)
        if (std::size_t const size = option_text(entry).size(); size <= most_name_columns)
            columns = std::max(columns, size);
    columns += 2;
    for (option const& entry : all) {
        std::string prefix = option_text(entry);
        if (prefix.size() + 2 > columns) {
            text += prefix + "\n";
            prefix.clear();
        }
        prefix.resize(columns, ' ');
        text += filled(prefix, entry.help);
    }
    return cmd.more.empty() ? text : text + "\n" + filled("", cmd.more);
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
    command const* const cmd = find_command(words.front());
    if (cmd == nullptr)
        return "";
    for (option const& entry : cmd->options)
        if (words.size() > 2 && words[words.size() - 2] == entry.name && !entry.value.empty() &&
            !(entry.may_stand_alone && last.starts_with("--")))
            return entry.value.starts_with("FILE") ? "<file>\n" : lines_with(last, choices_of(entry, last));
    if (!last.starts_with("-"))
        return cmd->words != nullptr ? lines_with(last, cmd->words()) : "";
    std::vector<std::string> all;
    for (option const& entry : cmd->options)
        all.emplace_back(entry.name);
    all.emplace_back(help_option.name);
    return lines_with(last, all);
}

} // namespace cli
