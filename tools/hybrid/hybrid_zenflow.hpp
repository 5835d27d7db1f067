// SPDX-License-Identifier: Apache-2.0
// The part of hybrid that defers gradients.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/formats.hpp>

struct zenflow_settings {
    double topk_ratio = 0.1;
    std::size_t update_interval = 4;
    std::size_t select_interval = 16;
    bool overlap = true;
    std::size_t layers = 1;
    std::size_t steps = 0; // 0: five windows and a selection
    adamant::shard_dtypes types = {};
    std::string link;
    double backward_ms = 0, forward_ms = 0; // 0: as long as half the CPU's step over all takes, and half of that
    bool only_digest = false;
};

// Plain offloading, speculation and ZenFlow in turn, with the same model, device and waits: how long steps take, how
// long the device waits in them, and what adamant plan's formula says of that for the rates that were measured.
void run_zenflow(zenflow_settings const& chosen);
