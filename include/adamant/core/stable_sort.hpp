// SPDX-License-Identifier: Apache-2.0
// std::stable_sort, of which Clang 19 warns in every program that includes it from libstdc++ 12: that allocates by
// std::get_temporary_buffer, which C++17 deprecates.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Of random access iterators; in n log n comparisons, with memory for n iterators and values.
template <class Iterator, class Less>
void stable_sort(Iterator first, Iterator last, Less const& less)
{
    std::vector<Iterator> order;
    std::vector<typename std::iterator_traits<Iterator>::value_type> sorted;
    order.reserve(static_cast<std::size_t>(last - first));
    sorted.reserve(order.capacity()); // before anything is moved
    for (Iterator i = first; i != last; ++i)
        order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](Iterator a, Iterator b) { return less(*a, *b) || (!less(*b, *a) && a < b); });
    for (Iterator const i : order)
        sorted.push_back(std::move(*i));
    std::move(sorted.begin(), sorted.end(), first);
}

} // namespace detail
ADAMANT_END_NAMESPACE
