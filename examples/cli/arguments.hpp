// SPDX-License-Identifier: Apache-2.0
// The command line of the tool: options of the form --name value, --name=value or --flag.
#pragma once

#include <charconv>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cli {

// What the person at the keyboard got wrong; main() prints it and exits with 2.
class usage_error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

class arguments {
public:
    arguments(int argc, char** argv, int first) : words_(argv + first, argv + argc) {}

    // Whether --name was given; takes it off the list.
    bool flag(std::string_view name)
    {
        for (auto word = words_.begin(); word != words_.end(); ++word)
            if (*word == name) {
                words_.erase(word);
                return true;
            }
        return false;
    }

    // The value of --name, if it was given; takes it off the list.
    std::optional<std::string> value(std::string_view name)
    {
        std::optional<std::string> const result = take(name);
        if (result && take(name))
            throw usage_error(std::string(name) + " is given more than once");
        return result;
    }
    std::string value(std::string_view name, std::string_view otherwise)
    {
        return value(name).value_or(std::string(otherwise));
    }

    // The values of a --name that may be given any number of times, in order; takes them off the list.
    std::vector<std::string> values(std::string_view name)
    {
        std::vector<std::string> all;
        while (std::optional<std::string> one = take(name))
            all.push_back(*std::move(one));
        return all;
    }

    // The value of a --name that may also stand alone, and then means `bare`; takes it off the list.
    std::string value(std::string_view name, std::string_view otherwise, std::string_view bare)
    {
        for (auto word = words_.begin(); word != words_.end(); ++word)
            if (*word == name && (word + 1 == words_.end() || (word + 1)->starts_with("--"))) {
                word->append("=").append(bare);
                break;
            }
        return value(name, otherwise);
    }

    unsigned number(std::string_view name, unsigned otherwise, unsigned least, unsigned most)
    {
        return number(name, least, most).value_or(otherwise);
    }
    std::optional<unsigned> number(std::string_view name, unsigned least, unsigned most)
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

    // The first word that is no option; takes it off the list. To be called when all options with values are read.
    std::optional<std::string> word()
    {
        for (auto word = words_.begin(); word != words_.end(); ++word)
            if (!word->empty() && word->front() != '-') {
                std::string result = *std::move(word);
                words_.erase(word);
                return result;
            }
        return std::nullopt;
    }

    // Throws for whatever nobody took.
    void done() const
    {
        if (!words_.empty())
            throw usage_error("'" + words_.front() + "' is not understood here");
    }

private:
    std::optional<std::string> take(std::string_view name)
    {
        for (auto word = words_.begin(); word != words_.end(); ++word) {
            if (*word == name) {
                if (word + 1 == words_.end())
                    throw usage_error(std::string(name) + " needs a value");
                std::string result = *(word + 1);
                words_.erase(word, word + 2);
                return result;
            }
            if (word->starts_with(name) && word->size() > name.size() && (*word)[name.size()] == '=') {
                std::string result = word->substr(name.size() + 1);
                words_.erase(word);
                return result;
            }
        }
        return std::nullopt;
    }

    std::vector<std::string> words_;
};

} // namespace cli
