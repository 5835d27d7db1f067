// SPDX-License-Identifier: Apache-2.0
// `adamant verify`: checks that this machine computes the expected bits.
#pragma once

#include "arguments.hpp"

namespace cli {

// `adamant verify`. Returns the exit status: 0 where every digest is the expected one, else 1.
int verify(arguments& options);

} // namespace cli
