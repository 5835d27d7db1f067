// SPDX-License-Identifier: Apache-2.0
// What contexts check fragments with.
#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the program where it does not hold, naming the line.
#define REQUIRE(condition)                                                                                             \
    ((condition) ? void() : (std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), std::exit(1)))
