// SPDX-License-Identifier: Apache-2.0
// The command line of one command: options of the form --name value, --name=value or --flag, and words.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"

namespace cli {

// An error in the command line; main() prints it and exits with 2.
class usage_error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Parsed arguments of a command. Options may be read in any order; each must be in the command's list.
class arguments {
public:
    // Throws usage_error for options that the command does not have, and suggests similar ones.
    arguments(command const& cmd, std::vector<std::string> const& words);

    // Returns whether --name is present, and removes it.
    bool flag(std::string_view name);

    // Returns the value of --name, if it is present, and removes it.
    std::optional<std::string> value(std::string_view name);
    std::string value(std::string_view name, std::string_view otherwise)
    {
        return value(name).value_or(std::string(otherwise));
    }
    // Returns the value of a --name that may also stand alone, and then means `bare`, and removes it.
    std::string value(std::string_view name, std::string_view otherwise, std::string_view bare);

    // Returns the values of a --name that may be repeated, in order, and removes them.
    std::vector<std::string> values(std::string_view name);

    unsigned number(std::string_view name, unsigned otherwise, unsigned least, unsigned most)
    {
        return number(name, least, most).value_or(otherwise);
    }
    std::optional<unsigned> number(std::string_view name, unsigned least, unsigned most);

    // Returns the first word that is not an option, and removes it.
    std::optional<std::string> word();

    // Throws for arguments that were not read. context: "beside --from".
    void check_empty(std::string_view context = "here") const;

private:
    struct argument {
        std::string_view name;            // empty: a word
        std::optional<std::string> value; // the word
        std::string text;                 // as in the command line
    };
    // Removes and returns all arguments of this name.
    std::vector<argument> take(std::string_view name);
    std::optional<argument> take_one(std::string_view name);

    command const& command_;
    std::vector<argument> arguments_;
};

} // namespace cli
