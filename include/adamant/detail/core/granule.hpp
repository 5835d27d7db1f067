// SPDX-License-Identifier: Apache-2.0
// Granularity of work distribution and the default prefetch distance of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// Work is divided at multiples of this many elements. A granule is a whole number of cache lines of every aligned
// array, and a whole number of groups of every kernel.
inline constexpr std::size_t granule_elems = 64;

namespace kernel {
// See adamant::default_prefetch_bytes().
inline constexpr std::uint32_t default_prefetch_bytes = 2048;
} // namespace kernel

ADAMANT_END_NAMESPACE
