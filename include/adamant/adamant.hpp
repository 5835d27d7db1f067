// SPDX-License-Identifier: Apache-2.0
// All that a trainer needs for a step: arrays, cores, memory, an optimizer. Includes only. adamant/machine.hpp has the
// rest except for the opt-in parts: which cores, how many, and which share of the work.
#pragma once

#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/abi.hpp>
#include <adamant/core/dtype.hpp>
#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>
#include <adamant/device/placement.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/exec/first_touch.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/exec/memory_limits.hpp>
#include <adamant/exec/slices.hpp>
#include <adamant/exec/team.hpp>
#include <adamant/kernel/isa.hpp>
#include <adamant/numerics/coefficients.hpp>
#include <adamant/numerics/convert.hpp>
#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/shard/any_shard.hpp>
#include <adamant/shard/shard.hpp>
#include <adamant/shard/shard_list.hpp>
#include <adamant/step/grad_norm.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_report.hpp>
#include <adamant/step/step.hpp>
#include <adamant/topology/index_set.hpp>
