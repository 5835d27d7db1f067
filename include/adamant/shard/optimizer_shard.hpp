// SPDX-License-Identifier: Apache-2.0
// What an optimizer takes: a shard of any types, with the kernels for its steps, and an array to add gradients up in.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>

#include <adamant/shard/any_shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// A view as shard is, from which it converts.
class optimizer_shard : public any_shard {
public:
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE optimizer_shard(
        shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& of) noexcept // NOLINT: meant to convert
        : any_shard(optimizer_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), of.pointers(), of.size())
    {
    }
    // Of types that are known at run time. In a header-only program the format has to be one of optimizer_format().
    ADAMANT_ALWAYS_INLINE explicit optimizer_shard(any_shard const& of) noexcept : any_shard(of) {}
};

// An array for optimizer::accumulate(), of the shard's size, of float or bfloat16; or none. A view.
struct accumulator_array {
    void* data = nullptr;
    dtype type = dtype::none;             // float32, bfloat16, or none
    std::optional<std::size_t> size = {}; // where it is known, it has to be the shard's

    accumulator_array() = default;
    accumulator_array(void* array, dtype of) noexcept : data(array), type(of) {}
    accumulator_array(float* array) noexcept : data(array), type(dtype::float32) {}     // NOLINT: meant to convert
    accumulator_array(bfloat16* array) noexcept : data(array), type(dtype::bfloat16) {} // NOLINT: meant to convert
    // A vector that lives on, a span or a buffer.
    template <array_range Range>
        requires moment_type<std::remove_cvref_t<detail::element_of<Range>>>
    accumulator_array(Range&& array) noexcept // NOLINT: meant to convert
        : accumulator_array(std::data(array))
    {
        size = std::size(array);
    }
};

ADAMANT_END_NAMESPACE
