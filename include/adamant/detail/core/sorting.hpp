// SPDX-License-Identifier: Apache-2.0
// Sorting of vectors with one instantiation of std::sort for all element types.
//
// Each instantiation of std::sort takes compilers longer than the code that uses its result. (And Clang 19 warns about
// std::stable_sort in libstdc++ 12, which calls std::get_temporary_buffer, deprecated in C++17.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

template <class T>
void permute(std::vector<T>& all, std::vector<std::size_t> const& order)
{
    std::vector<T> sorted;
    sorted.reserve(all.size()); // may throw, so before the first move
    for (std::size_t const i : order)
        sorted.push_back(std::move(all[i]));
    all = std::move(sorted);
}
// Takes O(n log n) comparisons and memory for n indexes and n values.
template <class T, class Less>
void sort_stably(std::vector<T>& all, Less const& less)
{
    permute(all, sorted_order(all, less));
}

// The indexes of the keys, stably sorted by key, in O(n) time for keys of a bounded length. Sorting thousands of
// addresses by comparison takes longer than a step over as many small shards.
inline std::vector<std::size_t> sorted_order(std::vector<std::uint64_t> const& keys)
{
    constexpr unsigned digit_bits = 11;
    constexpr std::size_t digits = std::size_t{1} << digit_bits;
    struct item {
        std::uint64_t key;
        std::size_t index;
    };
    std::vector<item> items(keys.size()), sorted(keys.size());
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        items[i] = {keys[i], i};
        differing |= keys[i] ^ keys.front();
    }
    std::vector<std::size_t> begins(digits);
    for (unsigned shift = 0; shift < 64 && differing >> shift != 0; shift += digit_bits) {
        auto const digit_of = [=](item const& each) { return each.key >> shift & (digits - 1); };
        if ((differing >> shift & (digits - 1)) == 0)
            continue;
        std::fill(begins.begin(), begins.end(), std::size_t{0});
        for (item const& each : items)
            ++begins[digit_of(each)];
        std::size_t begin = 0;
        for (std::size_t& next : begins)
            begin += std::exchange(next, begin);
        for (item const& each : items)
            sorted[begins[digit_of(each)]++] = each;
        items.swap(sorted);
    }
    std::vector<std::size_t> order(keys.size());
    for (std::size_t i = 0; i < items.size(); ++i)
        order[i] = items[i].index;
    return order;
}

} // namespace detail
ADAMANT_END_NAMESPACE
