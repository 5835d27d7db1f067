// SPDX-License-Identifier: Apache-2.0
// Names for what a state is stored as.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <adamant/shard/dtypes.hpp>

ADAMANT_BEGIN_NAMESPACE

// The types of a shard whose master and moments are stored so, with 16-bit weights written where the master is float32
// or in two halves:
//   float32                 float32 master and moments
//   split_float32           a master in two halves, of which the weight is one; float32 moments
//   bfloat16                float32 master, bfloat16 moments
//   quantized8              float32 master, moments of 8 bits
//   split_float32+bfloat16, split_float32+quantized8: a master in two halves, such moments
// weight: of the weights, bfloat16 or float16; or none, for a master that is the weight itself. A master in two halves
// needs bfloat16. None for another name, and for types that no shard has together. Pure.
[[nodiscard]] constexpr std::optional<shard_dtypes> types_of_state(std::string_view name, dtype grad,
                                                                   dtype weight) noexcept
{
    constexpr std::string_view master_names[] = {"float32", "split_float32"};
    dtype master = dtype::float32;
    dtype moments = dtype::float32;
    constexpr dtype narrow_moments[] = {dtype::bfloat16, dtype::quantized8};
    for (dtype const type : narrow_moments) {
        std::string_view const text = adamant::name(type);
        if (name == text)
            name = master_names[0];
        else if (name.ends_with(text) && name.substr(0, name.size() - text.size()).ends_with('+'))
            name.remove_suffix(text.size() + 1);
        else
            continue;
        moments = type;
        break;
    }
    if (name == master_names[1])
        master = dtype::split_float32;
    else if (name != master_names[0])
        return std::nullopt;
    if (master == dtype::split_float32 && weight != dtype::bfloat16)
        return std::nullopt;
    return shard_dtypes{master, grad, moments, moments, weight};
}

ADAMANT_END_NAMESPACE
