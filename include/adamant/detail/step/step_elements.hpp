// SPDX-License-Identifier: Apache-2.0
// Steps a range of elements of a shard of any types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/shard.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Steps elements [begin, end) and returns the number of infinite and NaN gradients. A float32 weight_out is copied from
// the params block by block, while these are in a cache: a kernel that stores both would double the kernels of float32.
inline std::uint64_t step_elements(any_shard const& s, isa tier, std::size_t begin, std::size_t end,
                                   coefficients const& c, kernel::memory_access const& access) noexcept
{
    constexpr std::size_t block = 4096;
    kernel::step_function const run = s.step_for(tier);
    kernel::step_pointers const& arrays = s.pointers();
    if (!has_param_copy(s.format().types))
        return run(arrays, begin, end, c, access);
    std::uint64_t nonfinite = 0;
    for (std::size_t next; begin < end; begin = next) {
        next = std::min(end, begin + block);
        nonfinite += run(arrays, begin, next, c, access);
        std::memcpy(arrays.weight_out + begin * sizeof(float), arrays.param + begin * sizeof(float),
                    (next - begin) * sizeof(float));
    }
    return nonfinite;
}

} // namespace detail
ADAMANT_END_NAMESPACE
