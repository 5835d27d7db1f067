// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/optimizer_options.hpp.
#pragma once

#include <cmath>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL double clip_coefficient(double norm, double max_norm) noexcept
{
    detail::default_mode_scope const mode;
    double const factor = max_norm / (norm + 1e-6);
    return max_norm == 0 || !(factor < 1) ? 1.0 : factor;
}

ADAMANT_DECL double step_phase::gb_per_s() const noexcept
{
    detail::default_mode_scope const mode;
    return seconds > 0 ? static_cast<double>(bytes_moved) / seconds * 1e-9 : 0;
}

ADAMANT_DECL std::size_t optimizer_report::bytes_moved() const noexcept
{
    return gradients.bytes_moved + update.bytes_moved;
}

ADAMANT_END_NAMESPACE
