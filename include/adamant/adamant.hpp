// SPDX-License-Identifier: Apache-2.0
// Everything that a trainer needs for a step: arrays, executors, memory, an optimizer. Includes only. Cores, tuning,
// the split between CPU and device, ZenFlow and the opt-in parts have headers of their own.
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
