// SPDX-License-Identifier: Apache-2.0
// What an error says: for tests of messages.
#pragma once

#include <initializer_list>
#include <string>

#include "catch.hpp"

namespace test {

// The text of the Error that the call throws.
template <class Error, class Call>
std::string refusal(Call const& call)
{
    try {
        call();
    } catch (Error const& error) {
        return error.what();
    }
    return "not refused, or not so";
}
// Whether it is one of ours, and has all of these words.
inline bool mentions(std::string const& text, std::initializer_list<char const*> words)
{
    INFO(text);
    for (std::string const word : words)
        if (text.find(word) == std::string::npos) {
            CHECK(word == "mentioned");
            return false;
        }
    return text.compare(0, 9, "adamant: ") == 0;
}

} // namespace test
