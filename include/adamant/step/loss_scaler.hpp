// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling: finds by trial the factor that keeps float16 gradients from underflowing.
#pragma once

#include <cstdint>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// The rule of Micikevicius et al., arXiv 1710.03740, section 3.2: grow after growth_interval steps without an overflow,
// back off at one. With growth_factor 2 and backoff_factor 0.5 every scale is a power of two, so scaling loses no bits.
struct loss_scaling_options {
    double initial_scale = 65536;
    double growth_factor = 2;             // at least 1
    double backoff_factor = 0.5;          // in (0, 1]
    std::uint32_t growth_interval = 2000; // steps in a row without an overflow, at least 1
    // How many overflows, since the scale last grew, make it back off (DeepSpeed's hysteresis); at least 1.
    std::uint32_t hysteresis = 1;
    double min_scale = 1;
    double max_scale = 0x1p32; // larger ones gain nothing
};

// What the scaler has learned; saved with the optimizer's state.
struct loss_scaler_state {
    double scale = 1;
    std::uint32_t good_steps = 0; // in a row
    std::uint32_t hysteresis_left = 1;
    friend bool operator==(loss_scaler_state const&, loss_scaler_state const&) = default;
};

namespace detail {
// Whether float holds the scale's inverse, which gradients are multiplied with.
[[nodiscard]] bool is_loss_scale(double scale) noexcept;
inline constexpr char const* loss_scale_rule = "from 2.4e-38 to 4.2e37, so that float holds its inverse";
} // namespace detail

// Throws invalid_argument naming the first field that cannot be.
void validate(loss_scaling_options const& options);

[[nodiscard]] loss_scaler_state initial_state(loss_scaling_options const& options);

// The state after a step. Pure; thread-safe.
[[nodiscard]] loss_scaler_state after_step(loss_scaler_state state, loss_scaling_options const& options,
                                     bool overflow) noexcept;

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/step/loss_scaler.ipp>
#endif
