// SPDX-License-Identifier: Apache-2.0
// The tool's commands and their options, in one place: what is accepted, help, suggestions and the shell's completion
// are made of this list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cli {

class arguments;

struct option {
    std::string_view name;  // with its dashes
    std::string_view value; // what help calls its value; empty: it has none. A path is FILE, or begins so
    std::string_view help;
    std::string_view choices = {};                         // what the value may be, as far as it can be listed
    std::vector<std::string> (*found_choices)() = nullptr; // the same, where it takes a function to know
    bool may_stand_alone = false;                          // the value may be left out
};

struct command {
    std::string_view name;
    std::string_view synopsis; // what follows the name
    std::string_view summary;  // a clause
    std::string_view about;
    std::vector<option> options; // --help comes by itself
    std::string_view more;       // below the options
    int (*run)(arguments&);
    std::vector<std::string> (*words)() = nullptr; // what a word that is no option may be; none: there is no such word
};

std::span<command const> commands();

// nullptr: there is none of this name.
command const* find_command(std::string_view name);

// The names of all commands.
std::vector<std::string> command_names();

// Help, in 80 columns: of the tool, and of one command.
std::string overview();
std::string help_of(command const& of);

// What the last of these words, which stand after the tool's name, may become, a line each; "<file>" where that is a
// path. An = between an option and its value is a word of its own, as bash has it.
std::string completions(std::vector<std::string> words);

} // namespace cli
