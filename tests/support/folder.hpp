// SPDX-License-Identifier: Apache-2.0
// A new, empty folder for a test.
#pragma once

#include <cstdlib>
#include <string>

#include "catch.hpp"

namespace test {

// In memory where it may be, for files are many and short. mkdtemp() fills in the X's.
inline std::string new_folder(std::string const& what)
{
    std::string folder = "/dev/shm/adamant-" + what + "-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) {
        folder = "/tmp/adamant-" + what + "-XXXXXX";
        REQUIRE(::mkdtemp(folder.data()) != nullptr);
    }
    return folder;
}

} // namespace test
