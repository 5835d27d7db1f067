// SPDX-License-Identifier: Apache-2.0
// `adamant plan`: memory and step time of a model with its optimizer offloaded.
#pragma once

#include "arguments.hpp"

namespace cli {

// Exit status: 0, it fits; 1, it does not.
int plan(arguments& options);

} // namespace cli
