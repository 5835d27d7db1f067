// SPDX-License-Identifier: Apache-2.0
// All that a trainer needs for a step: arrays, cores, memory, an optimizer. Includes only. adamant/machine.hpp has the
// rest except for the opt-in parts: which cores, how many, and which share of the work.
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
