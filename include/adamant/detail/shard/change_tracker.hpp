// SPDX-License-Identifier: Apache-2.0
// Compares the published weights of a shard, or the params that are rounded to them, with a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/shard.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Kernels mark what they change. This is for steps over copies of a shard's arrays, and for rollbacks.
class change_tracker {
public:
    change_tracker(any_shard const& shard, isa tier) noexcept
        : compared_(shard.data(compared_array(shard.format().types))),
          elem_bytes_(size_bytes(shard.format().types[compared_array(shard.format().types)])),
          mark_(kernel::mark_changes_for(shard.format().types, tier))
    {
    }

    // Copies what is compared of n elements from `begin` on.
    void copy(std::size_t begin, std::size_t n, std::byte* copied) const noexcept
    {
        std::memcpy(copied, compared_ + begin * elem_bytes_, n * elem_bytes_);
    }
    // Sets the bits of elements that differ from another copy. The first bit belongs to element `begin`.
    void mark(std::size_t begin, std::size_t n, std::byte const* other, std::uint64_t* words) const noexcept
    {
        mark_(compared_ + begin * elem_bytes_, other, n, words);
    }

private:
    std::byte const* compared_;
    std::size_t elem_bytes_;
    kernel::mark_changes_function mark_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
