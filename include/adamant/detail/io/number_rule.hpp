// SPDX-License-Identifier: Apache-2.0
// Ranges of numeric options.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The range of an option, and its description in error messages.
struct number_rule {
    double low;
    double high;
    bool includes_low;
    bool includes_high;
    char const* text;
    [[nodiscard]] bool allows(double x) const noexcept // false for NaN
    {
        return (includes_low ? x >= low : x > low) && (includes_high ? x <= high : x < high);
    }
};
inline constexpr double max_finite = std::numeric_limits<double>::max();
inline constexpr number_rule at_least_zero{0, max_finite, true, true, "a finite number, 0 or above"};
inline constexpr number_rule above_zero{0, max_finite, false, true, "a finite number above 0"};
inline constexpr number_rule zero_to_one{0, 1, true, true, "from 0 to 1"};
inline constexpr number_rule share_of_cores{0, 1, false, true, "above 0 and at most 1"};
inline constexpr number_rule reserved_share{0, 1, true, false, "0 or above and below 1"};

// Returns whether the two shares add up to 1, up to rounding of their decimal fractions.
inline bool shares_agree(double optimizer, double host) noexcept
{
    return std::abs(optimizer + host - 1) <= 1e-6;
}

} // namespace detail
ADAMANT_END_NAMESPACE
