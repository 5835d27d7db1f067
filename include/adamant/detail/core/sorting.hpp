// SPDX-License-Identifier: Apache-2.0
// Sorting that is compiled once for all types: std::sort is compiled for each, and takes compilers longer than all that
// this library does with what is sorted. (And Clang 19 warns of std::stable_sort in libstdc++ 12, which allocates by
// std::get_temporary_buffer, deprecated in C++17.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The numbers below `count` in the order that less(things, a, b) gives them; equal ones in order.
inline std::vector<std::size_t> sorted_order(std::size_t count, void const* things,
                                             bool (*less)(void const*, std::size_t, std::size_t))
{
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [=](std::size_t a, std::size_t b) { return less(things, a, b) || (!less(things, b, a) && a < b); });
    return order;
}
template <class T, class Less>
std::vector<std::size_t> sorted_order(std::vector<T> const& all, Less const& less)
{
    struct {
        T const* elements;
        Less const& less;
    } const things{all.data(), less};
    return sorted_order(all.size(), &things, [](void const* of, std::size_t a, std::size_t b) {
        auto const& both = *static_cast<decltype(things)*>(of);
        return bool(both.less(both.elements[a], both.elements[b]));
    });
}

// In n log n comparisons, with memory for n numbers and values.
template <class T, class Less>
void sort_stably(std::vector<T>& all, Less const& less)
{
    std::vector<T> sorted;
    sorted.reserve(all.size()); // before anything is moved
    for (std::size_t const i : sorted_order(all, less))
        sorted.push_back(std::move(all[i]));
    all = std::move(sorted);
}

} // namespace detail
ADAMANT_END_NAMESPACE
