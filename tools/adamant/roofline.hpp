// SPDX-License-Identifier: Apache-2.0
// `adamant roofline`: the memory limit of optimizer steps.
#pragma once

#include "arguments.hpp"

namespace cli {

// `adamant roofline`: the machine's limit, and how near real steps come. Returns the exit status; throws usage_error.
int roofline(arguments& options);

} // namespace cli
