// SPDX-License-Identifier: Apache-2.0
// A total that the threads of a call add to without waiting for each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Several totals; a thread adds to one that no other is using. Behind one mutex, the threads of a call that all finish
// at the same time would put each other to sleep, which takes longer than the call. Total::add() must be exact, as the
// order of additions is not determined.
template <class Total>
class striped_total {
public:
    // Thread-safe. hint: threads with different hints begin to look in different places.
    void add(std::size_t hint, Total const& part) noexcept
    {
        for (std::size_t i = hint;; ++i) {
            stripe& s = stripes_[i % stripes_.size()];
            if (s.taken.test_and_set(std::memory_order_acquire))
                continue;
            s.total.add(part);
            s.taken.clear(std::memory_order_release);
            return;
        }
    }
    // Call when no thread adds any more.
    [[nodiscard]] Total sum() const noexcept
    {
        Total sum = stripes_[0].total;
        for (std::size_t i = 1; i < stripes_.size(); ++i)
            sum.add(stripes_[i].total);
        return sum;
    }

private:
    struct alignas(64) stripe {
        std::atomic_flag taken;
        Total total;
    };
    std::array<stripe, 16> stripes_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
