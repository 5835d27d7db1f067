// SPDX-License-Identifier: Apache-2.0
// `adamant cores`: shows the machine and the cores of each rank.
#pragma once

#include "arguments.hpp"

namespace cli {

// Returns the exit status: 0, or that of the test of bindings. Throws for impossible requests before any output.
int cores(arguments& options);

} // namespace cli
