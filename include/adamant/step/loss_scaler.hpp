// SPDX-License-Identifier: Apache-2.0
// Dynamic loss scaling: the factor that keeps float16 gradients from underflowing, found by trying.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// The rule of Micikevicius et al., arXiv 1710.03740, section 3.2: grow after growth_interval steps without an overflow,
// back off at one. With growth_factor 2 and backoff_factor 0.5 every scale is a power of two, so scaling loses no bits.
struct loss_scaling_options {
    double initial_scale = 65536;
    double growth_factor = 2;             // at least 1
    double backoff_factor = 0.5;          // in (0, 1]
    std::uint32_t growth_interval = 2000; // steps in a row without an overflow, at least 1
    // So many overflows are let pass before the scale backs off (DeepSpeed's hysteresis), at least 1: the first one
    // does.
    std::uint32_t hysteresis = 1;
    double min_scale = 1;
    double max_scale = 0x1p32; // a larger one gains nothing, and must not grow to infinity
};

// What it has learned; saved with the optimizer's state.
struct loss_scaler_state {
    double scale = 1;
    std::uint32_t good_steps = 0; // in a row
    std::uint32_t hysteresis_left = 1;
    friend bool operator==(loss_scaler_state const&, loss_scaler_state const&) = default;
};

namespace detail {
// One whose inverse, which gradients are multiplied with, float holds.
[[nodiscard]] inline bool is_loss_scale(double scale) noexcept
{
    return scale >= 0x1p-125 && scale <= 0x1p125;
}
inline constexpr char const* loss_scale_rule = "from 2.4e-38 to 4.2e37, so that float holds its inverse";
} // namespace detail

// Throws invalid_argument naming the first field that cannot be.
inline void check(loss_scaling_options const& options)
{
    auto const refuse = [](char const* key, double value, char const* rule) {
        throw invalid_argument(std::string("adamant: ") + key + " is " + detail::text(value) + ", but must be " + rule);
    };
    auto const scale = [&](char const* key, double value) {
        if (!detail::is_loss_scale(value))
            refuse(key, value, detail::loss_scale_rule);
    };
    scale("initial_scale", options.initial_scale);
    scale("min_scale", options.min_scale);
    scale("max_scale", options.max_scale);
    if (options.min_scale > options.initial_scale || options.initial_scale > options.max_scale)
        refuse("initial_scale", options.initial_scale, "from min_scale to max_scale");
    if (!(std::isfinite(options.growth_factor) && options.growth_factor >= 1))
        refuse("growth_factor", options.growth_factor, "a finite number, 1 or above");
    if (!(options.backoff_factor > 0 && options.backoff_factor <= 1))
        refuse("backoff_factor", options.backoff_factor, "above 0 and at most 1");
    if (options.growth_interval == 0)
        refuse("growth_interval", 0, "1 or above");
    if (options.hysteresis == 0)
        refuse("hysteresis", 0, "1 or above");
}

[[nodiscard]] inline loss_scaler_state initial_state(loss_scaling_options const& options)
{
    return {options.initial_scale, 0, options.hysteresis};
}

// The state after a step. Pure; thread-safe.
[[nodiscard]] inline loss_scaler_state next(loss_scaler_state state, loss_scaling_options const& options,
                                            bool overflow) noexcept
{
    if (overflow) {
        state.good_steps = 0;
        if (state.hysteresis_left > 1)
            --state.hysteresis_left;
        else
            state.scale = std::max(state.scale * options.backoff_factor, options.min_scale);
    } else if (++state.good_steps >= options.growth_interval) {
        state.good_steps = 0;
        state.hysteresis_left = options.hysteresis;
        state.scale = std::min(state.scale * options.growth_factor, options.max_scale);
    }
    return state;
}

ADAMANT_END_NAMESPACE
