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

// What the person at the keyboard got wrong; main() prints it and exits with 2.
class usage_error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Options may be asked for in any order; only those that the command's list has.
class arguments {
public:
    // Throws usage_error for options that the command does not have, with those that it has and that are like them.
    arguments(command const& of, std::vector<std::string> const& words);

    // Whether --name was given; takes it off the list.
    bool flag(std::string_view name);

    // The value of --name, if it was given; takes it off the list.
    std::optional<std::string> value(std::string_view name);
    std::string value(std::string_view name, std::string_view otherwise)
    {
        return value(name).value_or(std::string(otherwise));
    }
    // The value of a --name that may also stand alone, and then means `bare`; takes it off the list.
    std::string value(std::string_view name, std::string_view otherwise, std::string_view bare);

    // The values of a --name that may be given any number of times, in order; takes them off the list.
    std::vector<std::string> values(std::string_view name);

    unsigned number(std::string_view name, unsigned otherwise, unsigned least, unsigned most)
    {
        return number(name, least, most).value_or(otherwise);
    }
    std::optional<unsigned> number(std::string_view name, unsigned least, unsigned most);

    // The first word that is no option; takes it off the list.
    std::optional<std::string> word();

    // Throws for arguments that were not taken. where: "beside --from".
    void done(std::string_view where = "here") const;

private:
    struct given {
        std::string_view name;            // empty: a word
        std::optional<std::string> value; // the word
        std::string written;              // as it was
    };
    // All that were given under this name; takes them off the list.
    std::vector<given> take(std::string_view name);
    std::optional<given> take_one(std::string_view name);

    command const& of_;
    std::vector<given> all_;
};

} // namespace cli
