// SPDX-License-Identifier: Apache-2.0
// Which numbers an option may be.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The numbers that an option may have, and how errors say so.
struct number_rule {
    double low;
    double high;
    bool low_itself;
    bool high_itself;
    char const* text;
    [[nodiscard]] bool allows(double x) const noexcept // a NaN never
    {
        return (low_itself ? x >= low : x > low) && (high_itself ? x <= high : x < high);
    }
};
inline constexpr double most_finite = std::numeric_limits<double>::max();
inline constexpr number_rule at_least_zero{0, most_finite, true, true, "a finite number, 0 or above"};
inline constexpr number_rule above_zero{0, most_finite, false, true, "a finite number above 0"};
inline constexpr number_rule zero_to_one{0, 1, true, true, "from 0 to 1"};
inline constexpr number_rule share_of_cores{0, 1, false, true, "above 0 and at most 1"};
inline constexpr number_rule reserved_share{0, 1, true, false, "0 or above and below 1"};

// Whether the two shares agree. They are decimal fractions, which need not add up to 1 to the last bit.
inline bool shares_agree(double optimizer, double host) noexcept
{
    return std::abs(optimizer + host - 1) <= 1e-6;
}

} // namespace detail
ADAMANT_END_NAMESPACE
