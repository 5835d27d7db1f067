// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arguments.hpp"

namespace cli {

// `adamant verify`. Returns the exit status: 0 where every digest is the expected one, else 1.
int verify(arguments& options);

} // namespace cli
