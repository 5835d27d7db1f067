// SPDX-License-Identifier: Apache-2.0
// Arrays laid end to end, each padded to a granule, so that threads share their elements evenly.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <adamant/detail/core/granule.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class granule_layout {
public:
    explicit granule_layout(std::size_t arrays)
    {
        begins_.reserve(arrays + 1);
        begins_.push_back(0);
    }
    // Adds an array of this many elements at the end.
    void append(std::size_t elements)
    {
        begins_.push_back(begins_.back() + (elements + granule_elems - 1) / granule_elems);
    }
    [[nodiscard]] std::size_t granules() const noexcept { return begins_.back(); }

    // Calls piece(array, begin, end) in order for granules first to last - 1. The caller limits `end` to the array's
    // size, which skips the padding.
    template <class Piece>
    void for_each_piece(std::size_t first, std::size_t last, Piece const& piece) const
    {
        if (first >= last)
            return;
        auto const next = std::upper_bound(begins_.begin(), begins_.end(), first);
        for (auto i = static_cast<std::size_t>(next - begins_.begin()) - 1; i + 1 < begins_.size() && begins_[i] < last;
             ++i)
            piece(i, first > begins_[i] ? (first - begins_[i]) * granule_elems : 0,
                  (last - begins_[i]) * granule_elems);
    }

private:
    std::vector<std::size_t> begins_; // in granules, one more than arrays
};

} // namespace detail
ADAMANT_END_NAMESPACE
