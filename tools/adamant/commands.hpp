// SPDX-License-Identifier: Apache-2.0
// The list of the tool's commands and options, from which parsing, help, suggestions and the shell's completion are
// derived.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

class arguments;

struct option {
    std::string_view name;  // with its dashes
    std::string_view value; // placeholder of its value in help; empty: no value. Paths begin with FILE
    std::string_view help;
    std::string_view choices = {};                        // possible values, as far as they can be listed
    std::vector<std::string> (*list_choices)() = nullptr; // the same, computed
    bool may_stand_alone = false;                         // the value is optional
};

struct command {
    std::string_view name;
    std::string_view synopsis; // the arguments after the name
    std::string_view summary;  // a clause
    std::string_view description;
    std::vector<option> options; // without --help, which every command has
    std::string_view more;       // text below the options
    int (*run)(arguments&);
    std::vector<std::string> (*words)() = nullptr; // possible words that are not options; null: the command has none
};

std::span<command const> commands();

// Returns null if there is no command of this name.
command const* find_command(std::string_view name);

// The names of all commands.
std::vector<std::string> command_names();

// Help in 80 columns: of the tool, and of one command.
std::string overview();
std::string help_of(command const& cmd);

// Returns the possible completions of the last word after the tool's name, a line each; "<file>" for a path. An =
// between an option and its value is a separate word, as in bash.
std::string completions(std::vector<std::string> words);

} // namespace cli
