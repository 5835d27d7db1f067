// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.hpp"

namespace cli {

// `adamant cores`. Returns the exit status: 0, or that of the test of bindings. What is asked for and cannot be had is
// thrown before anything is written.
int cores(arguments& options);

} // namespace cli
