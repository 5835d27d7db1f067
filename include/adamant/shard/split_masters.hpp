// SPDX-License-Identifier: Apache-2.0
// Whole arrays of float32 masters into halves and back, for shards with a param of split_float32.
#pragma once

#include <cstddef>
#include <cstring>

#include <adamant/numerics/convert.hpp>

ADAMANT_BEGIN_NAMESPACE

// Splits n masters, see split_master(). `low` may begin where `master` does: then the second half of the masters'
// memory is free afterwards. Otherwise no two arrays may overlap. At any addresses. Distinct arrays from any thread; no
// errors.
inline void split_masters(float const* master, std::size_t n, bfloat16* weight, split_float32* low) noexcept
{
    auto const* const from = reinterpret_cast<std::byte const*>(master);
    for (std::size_t i = 0; i < n; ++i) {
        split_parts const parts = split_master(load_unaligned<float>(from + i * sizeof(float)));
        store_unaligned(reinterpret_cast<std::byte*>(weight) + i * sizeof(bfloat16), parts.weight);
        store_unaligned(reinterpret_cast<std::byte*>(low) + i * sizeof(split_float32), parts.low);
    }
}

// The way back, with the same bits but for NaNs, which are canonical. `low` may begin where `master` does.
inline void join_masters(bfloat16 const* weight, split_float32 const* low, std::size_t n, float* master) noexcept
{
    for (std::size_t i = n; i-- != 0;) // from the end, so that no low half is overwritten before it is read
        store_unaligned(
            reinterpret_cast<std::byte*>(master) + i * sizeof(float),
            joined_master(
                load_unaligned<bfloat16>(reinterpret_cast<std::byte const*>(weight) + i * sizeof(bfloat16)),
                load_unaligned<split_float32>(reinterpret_cast<std::byte const*>(low) + i * sizeof(split_float32))));
}

ADAMANT_END_NAMESPACE
