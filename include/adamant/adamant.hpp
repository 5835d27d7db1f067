// SPDX-License-Identifier: Apache-2.0
// The whole library but its opt-in parts. Includes only.
#pragma once

#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/abi.hpp>
#include <adamant/core/dtype.hpp>
#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>
#include <adamant/device/emulated_device.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/exec/first_touch.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/exec/memory_placement.hpp>
#include <adamant/exec/resctrl.hpp>
#include <adamant/exec/slices.hpp>
#include <adamant/exec/team.hpp>
#include <adamant/isa/isa.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/numerics/coefficients.hpp>
#include <adamant/numerics/convert.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/numerics/oracle.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/shard/shard.hpp>
#include <adamant/shard/shard_list.hpp>
#include <adamant/split/best_ratio.hpp>
#include <adamant/split/placement.hpp>
#include <adamant/split/split.hpp>
#include <adamant/step/grad_norm.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_report.hpp>
#include <adamant/step/step.hpp>
#include <adamant/topology/index_set.hpp>
#include <adamant/topology/launch_mask.hpp>
#include <adamant/topology/machine.hpp>
#include <adamant/topology/ranks.hpp>
#include <adamant/topology/selection.hpp>
#include <adamant/tune/core_tuning.hpp>
#include <adamant/tune/ratio_follower.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/topology/hwloc.hpp>
#endif
