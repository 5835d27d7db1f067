// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/shard.hpp>: checks of a shard's arrays.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <adamant/dtype.hpp>
#include <adamant/error.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/core/array_size.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

ADAMANT_DECL void refuse_param_copy(shard_dtypes const& types)
{
    if (has_param_copy(types))
        throw_invalid_argument({"cannot add a shard with a float32 weight_out to an optimizer: only step() writes one. "
                                "Use the params, or a weight_out of bfloat16 or float16."});
}

ADAMANT_DECL void check_size(char const* array, std::size_t array_size, std::size_t size, dtype type)
{
    std::size_t const group = elems_together(type);
    if (group != 1 && array_size != (size + group - 1) / group)
        throw_invalid_argument({"param has ", counted(size, "element"), " but ", array, " has ",
                                counted(array_size, "group"), " of ", group, "; it needs ",
                                (size + group - 1) / group});
    if (group == 1 && array_size != size)
        throw_invalid_argument({"param has ", counted(size, "element"), " but ", array, " has ", array_size,
                                ". All arrays of a shard must have the same size."});
}

ADAMANT_DECL void check_arrays(shard_dtypes const& types, kernel::step_pointers const& pointers, std::size_t size)
{
    check_array_size("a shard of", size);
    std::uint64_t const begin = pointers.position.begin;
    if (begin > std::numeric_limits<std::uint64_t>::max() - size)
        throw_invalid_argument({"cannot place ", counted(size, "element"), " at element ", begin,
                                " of a parameter: their indexes exceed 64 bits. Was a negative begin converted?"});
    if (std::size_t const group = elems_together(types); begin % group != 0)
        throw_invalid_argument({"cannot begin a shard at element ", begin, ": its 8-bit moments are in groups of ",
                                group, ". Begin at a multiple of ", group, "."});
    std::byte const* const begins[shard_arrays] = {pointers.param, pointers.grad, pointers.exp_avg, pointers.exp_avg_sq,
                                                   pointers.weight_out};
    for (std::size_t a = 0; a < shard_arrays; ++a) {
        std::size_t const bytes = array_bytes(types[a], size);
        if (bytes == 0)
            continue;
        if (begins[a] == nullptr)
            throw_invalid_argument({shard_array::names[a], " is null, but the shard has ", counted(size, "element")});
        for (std::size_t b = 0; b < a; ++b) {
            auto const first = reinterpret_cast<std::uintptr_t>(begins[a]);
            auto const second = reinterpret_cast<std::uintptr_t>(begins[b]);
            if (first < second + array_bytes(types[b], size) && second < first + bytes)
                throw_invalid_argument({shard_array::names[b], " and ", shard_array::names[a],
                                        " overlap in memory. Give each array of a shard separate memory."});
        }
    }
}

ADAMANT_DECL void check_changed(any_shard const& shard, std::span<std::uint64_t> changed)
{
    if (changed.size() != changed_words(shard.size()))
        throw_invalid_argument({"cannot track a shard of ", counted(shard.size(), "element"), ": changed has ",
                                counted(changed.size(), "word"), ". It needs ", changed_words(shard.size()),
                                ", one bit for each element."});
    if (changed.data() == nullptr && !changed.empty())
        throw_invalid_argument({"changed is a null pointer"});
    auto const begin = reinterpret_cast<std::uintptr_t>(changed.data());
    for (std::size_t a = 0; a < shard_arrays; ++a) {
        auto const array = reinterpret_cast<std::uintptr_t>(shard.data(static_cast<shard_array::index>(a)));
        if (begin < array + shard.bytes(a, shard.size()) && array < begin + changed.size_bytes())
            throw_invalid_argument({shard_array::names[a], " and changed overlap in memory. Give each array of a shard "
                                                           "separate memory."});
    }
}

} // namespace detail
ADAMANT_END_NAMESPACE
