// SPDX-License-Identifier: Apache-2.0
// `adamant cores --bind-test`: verifies the bindings of optimizer threads.
#pragma once

#include <vector>

#include <adamant/cores.hpp>

namespace cli {

// Starts the optimizer's team of each of these ranks on its PUs, on this machine, and reads the bindings back from the
// kernel. Returns the exit status: 0 if every thread runs on its PU, else 1.
int bind_test(std::vector<adamant::rank_cores> const& ranks);

} // namespace cli
