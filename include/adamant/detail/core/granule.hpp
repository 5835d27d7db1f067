// SPDX-License-Identifier: Apache-2.0
// The unit in which work is divided.
#pragma once

#include <cstddef>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// Work is cut at multiples of this many elements: whole cache lines of every array whose base is aligned, and whole
// groups of every kernel.
inline constexpr std::size_t granule_elems = 64;

ADAMANT_END_NAMESPACE
