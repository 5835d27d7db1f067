// SPDX-License-Identifier: Apache-2.0
// The arrays of an optimizer that loads a state, which may itself consist of these arrays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Arrays are copied one after another, so a source that is part of another array would be overwritten before it is
// read.
class live_arrays {
public:
    // Arrays do not overlap.
    void add(void const* data, std::size_t bytes)
    {
        if (bytes != 0)
            extents_.push_back({reinterpret_cast<std::uintptr_t>(data), bytes});
    }
    // Call it after the last add().
    void sort()
    {
        std::sort(extents_.begin(), extents_.end(), [](extent const& a, extent const& b) { return a.begin < b.begin; });
    }
    // Throws invalid_argument if a copy to `target` reads one of the arrays elsewhere than there.
    void check_source(std::string_view param, void const* source, std::size_t bytes, void const* target) const
    {
        auto const begin = reinterpret_cast<std::uintptr_t>(source);
        auto const next = std::partition_point(extents_.begin(), extents_.end(),
                                               [&](extent const& e) { return e.begin + e.bytes <= begin; });
        if (source != target && next != extents_.end() && next->begin < begin + bytes)
            throw_invalid_argument(
                {"cannot load '", param,
                 "': its source is an array of this optimizer, which loading overwrites. Pass a copy "
                 "of the state."});
    }

private:
    struct extent {
        std::uintptr_t begin;
        std::size_t bytes;
    };
    std::vector<extent> extents_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
