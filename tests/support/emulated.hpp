// SPDX-License-Identifier: Apache-2.0
// The emulated devices of tests. With ADAMANT_TEST_SHARED_MEMORY in the environment they share the host's memory: the
// test unit.shared_memory runs all tests of devices so.
#pragma once

#include <cstdlib>
#include <memory>
#include <utility>

#include <adamant/emulated_device.hpp>

namespace test {

inline bool const shares_memory = std::getenv("ADAMANT_TEST_SHARED_MEMORY") != nullptr;

[[nodiscard]] inline std::shared_ptr<adamant::emulated_device> make_device(adamant::emulation_options options = {})
{
    options.shares_host_memory = shares_memory;
    return std::make_shared<adamant::emulated_device>(std::move(options));
}

} // namespace test
