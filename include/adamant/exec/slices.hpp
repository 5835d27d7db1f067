// SPDX-License-Identifier: Apache-2.0
// How a range of elements is cut into one slice per thread. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// A slice begins at a multiple of this many elements: whole cache lines of every array whose base is aligned, and
// whole groups of every kernel.
inline constexpr std::size_t slice_granule_elems = 64;

struct slice {
    std::size_t begin;
    std::size_t end;
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

// Slice number `index` of n elements cut into `parts` slices in order, disjoint, together the whole, of sizes that
// differ by at most one granule, so some are empty where n is small. n up to the largest size_t; index < parts.
[[nodiscard]] constexpr slice slice_of(std::size_t n, std::size_t parts, std::size_t index) noexcept
{
    std::size_t const granules = n / slice_granule_elems + (n % slice_granule_elems != 0);
    std::size_t const each = granules / parts;
    std::size_t const longer = granules % parts; // the first so many have one granule more
    std::size_t const first = index * each + std::min(index, longer);
    std::size_t const last = first + each + (index < longer);
    auto const element = [&](std::size_t granule) { return granule == granules ? n : granule * slice_granule_elems; };
    return {element(first), element(last)};
}

ADAMANT_END_NAMESPACE
