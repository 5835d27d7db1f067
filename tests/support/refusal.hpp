// SPDX-License-Identifier: Apache-2.0
// What an error says: for tests of messages.
#pragma once

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <string>

#include <adamant/error.hpp>

#include "catch.hpp"

namespace test {

// The text of the Error that the call must throw, which is to be one of ours.
template <class Error = adamant::invalid_argument, class Call>
std::string refusal(Call const& call)
{
    try {
        call();
    } catch (Error const& error) {
        CHECK(std::string(error.what()).starts_with("adamant: "));
        return error.what();
    } catch (std::exception const& other) {
        return std::string("another exception: ") + other.what();
    }
    return "no exception";
}

inline bool mentions(std::string const& text, std::initializer_list<std::string> words)
{
    UNSCOPED_INFO(text);
    return std::all_of(words.begin(), words.end(), [&](std::string const& word) {
        bool const found = text.find(word) != std::string::npos;
        if (!found)
            UNSCOPED_INFO("does not mention \"" << word << "\"");
        return found;
    });
}
inline bool mentions(std::string const& text, std::string const& word)
{
    return mentions(text, {word});
}

} // namespace test
