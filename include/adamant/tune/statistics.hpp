// SPDX-License-Identifier: Apache-2.0
// Statistics of repeated time measurements: medians, their spread, and how certain a difference is. They do not assume
// normally distributed errors, because those of a shared machine are not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/numerics/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

// The value below which the share q of all values lies, interpolated linearly (Hyndman and Fan's type 7).
// Throws invalid_argument for no values, and for a q outside [0, 1].
[[nodiscard]] inline double quantile(std::vector<double> values, double q)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument({"a quantile of no values was requested; give at least one value"});
    if (!(q >= 0 && q <= 1))
        detail::throw_invalid_argument({"quantile ", q, " was requested, but must be from 0 to 1"});
    std::sort(values.begin(), values.end());
    double const at = q * static_cast<double>(values.size() - 1);
    auto const below = static_cast<std::size_t>(at);
    std::size_t const above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

[[nodiscard]] inline double median(std::vector<double> values)
{
    return quantile(std::move(values), 0.5);
}

// A confidence range for the median of the distribution that the values are a sample of: between the order statistics
// that the sign test leaves (each value lies below the true median with probability 1/2, so ranks are binomial). With
// too few values it is the range of all values, and `confidence` says how certain that is.
struct median_range {
    double low = 0;
    double high = 0;
    double confidence = 0; // of this very range
};
// Throws invalid_argument for no values, and for a confidence outside (0, 1).
[[nodiscard]] inline median_range range_of_median(std::vector<double> values, double confidence)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument({"the range of the median of no values was requested; give at least one value"});
    if (!(confidence > 0 && confidence < 1))
        detail::throw_invalid_argument({"confidence ", confidence, " was requested, but must be between 0 and 1"});
    std::sort(values.begin(), values.end());
    std::size_t const n = values.size();
    // outside: the probability that at most k of n values lie below the median, for each k; twice that is what the
    // range from value k to value n - 1 - k leaves out.
    double log_term = -static_cast<double>(n) * std::log(2.0); // of n, as 2^-n itself may be too small for a double
    double outside = std::exp(log_term);
    std::size_t k = 0;
    for (; k + 1 < (n + 1) / 2; ++k) {
        log_term += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1));
        if (1 - 2 * (outside + std::exp(log_term)) < confidence)
            break;
        outside += std::exp(log_term);
    }
    return {values[k], values[n - 1 - k], 1 - 2 * outside};
}

ADAMANT_END_NAMESPACE
