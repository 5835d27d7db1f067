// SPDX-License-Identifier: Apache-2.0
// Sorting of vectors with one instantiation of std::sort for all element types.
//
// Each instantiation of std::sort takes compilers longer than the code that uses its result. (And Clang 19 warns about
// std::stable_sort in libstdc++ 12, which calls std::get_temporary_buffer, deprecated in C++17.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The indexes below `count`, stably sorted by less(context, a, b).
inline std::vector<std::size_t> sorted_order(std::size_t count, void const* context,
                                             bool (*less)(void const*, std::size_t, std::size_t))
{
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [=](std::size_t a, std::size_t b) { return less(context, a, b) || (!less(context, b, a) && a < b); });
    return order;
}
template <class T, class Less>
std::vector<std::size_t> sorted_order(std::vector<T> const& all, Less const& less)
{
    struct {
        T const* elements;
        Less const& less;
    } const order{all.data(), less};
    return sorted_order(all.size(), &order, [](void const* context, std::size_t a, std::size_t b) {
        auto const& by_value = *static_cast<decltype(order)*>(context);
        return bool(by_value.less(by_value.elements[a], by_value.elements[b]));
    });
}

// Takes O(n log n) comparisons and memory for n indexes and n values.
template <class T, class Less>
void sort_stably(std::vector<T>& all, Less const& less)
{
    std::vector<T> sorted;
    sorted.reserve(all.size()); // may throw, so before the first move
    for (std::size_t const i : sorted_order(all, less))
        sorted.push_back(std::move(all[i]));
    all = std::move(sorted);
}

} // namespace detail
ADAMANT_END_NAMESPACE
