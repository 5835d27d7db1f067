// SPDX-License-Identifier: Apache-2.0
// Umbrella header for training: shards, executors, memory, devices and the optimizer.
//
// Include separately, as needed: cores.hpp (core selection), changes.hpp (changed weights), split.hpp (CPU and device
// ratio), tune.hpp, zenflow.hpp, resctrl.hpp, and the opt-in headers that need nlohmann-json, xxHash or nvcc.
#pragma once

#include <adamant/checkpoint.hpp>
#include <adamant/device.hpp>
#include <adamant/dtype.hpp>
#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/index_set.hpp>
#include <adamant/isa.hpp>
#include <adamant/memory.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>
#include <adamant/step.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/core/abi.hpp>
