// SPDX-License-Identifier: Apache-2.0
// `adamant tune`: the number of cores that the optimizer needs.
#pragma once

#include "arguments.hpp"

namespace cli {

// `adamant tune`: how many cores the optimizer needs. Returns the exit status; throws usage_error.
int tune(arguments& options);

} // namespace cli
