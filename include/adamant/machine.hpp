// SPDX-License-Identifier: Apache-2.0
// For the machine that a job runs on: which cores a rank gets, how many are enough, where memory lies, and which share
// of the work the CPU should have. Includes only.
#pragma once

#include <adamant/device/best_ratio.hpp>
#include <adamant/device/split.hpp>
#include <adamant/exec/memory_placement.hpp>
#include <adamant/exec/resctrl.hpp>
#include <adamant/topology/launch_mask.hpp>
#include <adamant/topology/machine.hpp>
#include <adamant/topology/ranks.hpp>
#include <adamant/topology/read_machine.hpp>
#include <adamant/topology/selection.hpp>
#include <adamant/tune/core_tuning.hpp>
#include <adamant/tune/ratio_follower.hpp>
