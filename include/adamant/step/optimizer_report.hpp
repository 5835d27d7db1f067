// SPDX-License-Identifier: Apache-2.0
// The values of one step of an optimizer, and its report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <adamant/kernel/isa.hpp>

ADAMANT_BEGIN_NAMESPACE

// What becomes of a step whose gradients have infinities or NaNs. They are counted and reported in any case.
enum class nonfinite_policy : std::uint8_t {
    skip,  // nothing changes, as is usual with dynamic loss scaling
    zero,  // those elements count as zeros
    apply, // they go into the step as they are
};

// The values of one step. The optimizer's options have those that are absent.
struct step_values {
    std::optional<double> loss_scale = {};   // what the loss was multiplied with; absent: the scaler's, or 1
    std::optional<double> max_norm = {};     // of all gradients together, after unscaling; 0: no limit
    std::optional<double> max_abs_grad = {}; // of each element, after unscaling; 0: no limit. Not with max_norm
    std::span<double const> lr = {};         // one for each group; empty: the groups' own
};

// The factor that brings gradients of this norm down to max_norm: that of torch.nn.utils.clip_grad_norm_ (with its
// 1e-6), but in double: min(1, max_norm / (norm + 1e-6)). max_norm 0: 1. Pure.
[[nodiscard]] double clip_coefficient(double norm, double max_norm) noexcept;

enum class step_outcome : std::uint8_t { applied, skipped };

// Time and memory traffic of a part of a step. Bytes are counted, not measured: those that have to be read and written.
struct step_phase {
    double seconds = 0;
    std::size_t bytes_moved = 0;
    [[nodiscard]] double gb_per_s() const noexcept;
};

// A device's part of a step, and how long the device was busy with each kind of work.
struct device_report {
    std::size_t elements = 0; // stepped there
    double work_s = 0;
    double up_s = 0; // copies from the host
    double down_s = 0;
    std::size_t work_bytes = 0;
    std::size_t up_bytes = 0;
    std::size_t down_bytes = 0;
};

struct optimizer_report {
    std::uint64_t step = 0; // the number of this step, whether it was applied or skipped
    step_outcome outcome = step_outcome::applied;
    bool speculated = false;  // something was stepped before its norm was known
    bool rolled_back = false; // and was taken back, because it had to be clipped or skipped
    double loss_scale = 1;
    // Whether gradients were looked at before the step: where nobody clips by norm, scales the loss dynamically,
    // reduces over ranks, or asks that steps with infinities or NaNs be skipped or these be zeroed, that costs a pass
    // for nothing. Then global_norm is a NaN, and nonfinite_grads 0 whatever there was.
    bool measured = true;
    double global_norm = 0; // of the finite gradients, unscaled, over all ranks
    // The factor that brought gradients down to max_norm. 0 where clip_coefficient / loss_scale would be at most 2^-251
    // (2.8e-76): gradients then count as zeros.
    double clip_coefficient = 1;
    std::uint64_t nonfinite_grads = 0; // over all ranks
    // The first one in this process, in the order of shards.
    struct place {
        std::size_t shard;
        std::size_t index;
    };
    std::optional<place> first_nonfinite = {};
    std::size_t elements = 0; // stepped, on both sides
    double ratio = 1;         // the share of them that the CPU has stepped
    double cpu_busy_s = 0;    // how long its threads have worked, on average
    device_report device;
    std::size_t shards_waited = 0; // for the norm: finish() was called first, or the journal's budget used up
    std::size_t journal_bytes = 0; // of records written
    double seconds = 0;            // from its beginning to its end, with the time that gradients took to arrive
    step_phase gradients;          // until the norm was known: with what was stepped as gradients arrived
    step_phase update;             // after that: the step, the rest of it, or the way back
    [[nodiscard]] std::size_t bytes_moved() const noexcept;
    isa tier = isa::scalar;
    unsigned threads = 0;
    std::string_view pus; // that the threads are bound to, as a list; the optimizer's memory
    double cpu_quota = 0; // executor::cpu_quota(): fewer CPUs than threads make steps slow
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/step/optimizer_report.ipp>
#endif
