// SPDX-License-Identifier: Apache-2.0
// The unit in which work is divided, and how far kernels prefetch.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// Work is cut at multiples of this many elements: whole cache lines of every array whose base is aligned, and whole
// groups of every kernel.
inline constexpr std::size_t granule_elems = 64;

namespace kernel {
// See adamant::default_prefetch_bytes().
inline constexpr std::uint32_t default_prefetch_bytes = 2048;
} // namespace kernel

ADAMANT_END_NAMESPACE
