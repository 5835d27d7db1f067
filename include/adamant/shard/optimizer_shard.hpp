// SPDX-License-Identifier: Apache-2.0
// What an optimizer takes: a shard of any types, with the kernels for its steps, and an array to add gradients up in.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <type_traits>

#include <adamant/shard/any_shard.hpp>
#include <adamant/shard/format.hpp>

ADAMANT_BEGIN_NAMESPACE

// A view as shard is, from which it converts.
class optimizer_shard : public any_shard {
public:
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    optimizer_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& of) noexcept // NOLINT: meant to convert
        : any_shard(optimizer_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), of.pointers(), of.size())
    {
    }
    // Of types that are known at run time. In a header-only program the format has to be one of optimizer_format().
    ADAMANT_ALWAYS_INLINE explicit optimizer_shard(any_shard const& of) noexcept : any_shard(of) {}
};

// An array for optimizer::accumulate(), of the shard's size, of float or bfloat16; or none. A view.
class accumulator_array {
public:
    accumulator_array() = default;
    // Of a type that is known at run time: float32 or bfloat16, or none; add_shard() refuses others.
    ADAMANT_ALWAYS_INLINE accumulator_array(void* array, dtype of) noexcept
        : data_(array), type_(of), kernels_(kernel::sum_kernels_of(of))
    {
    }
    // A template, so that programs without accumulators have none of their kernels.
    template <sum_type T>
    ADAMANT_ALWAYS_INLINE accumulator_array(T* array) noexcept // NOLINT: meant to convert
        : data_(array), type_(dtype_of<T>), kernels_(&kernel::sum_kernels_for<T>)
    {
    }
    // A vector that lives on, a span or a buffer.
    template <array_range Range>
        requires sum_type<std::remove_cvref_t<detail::element_of<Range>>>
            ADAMANT_ALWAYS_INLINE accumulator_array(Range&& array)
    noexcept // NOLINT: meant to convert
        : accumulator_array(std::data(array))
    {
        size_ = std::size(array);
    }

    [[nodiscard]] void* data() const noexcept { return data_; }
    [[nodiscard]] dtype type() const noexcept { return type_; } // none: there is no array
    // Where it is known; then it has to be the shard's.
    [[nodiscard]] std::optional<std::size_t> size() const noexcept { return size_; }
    // Null for a type that no accumulator has.
    [[nodiscard]] kernel::sum_kernels_function kernels() const noexcept { return kernels_; }

private:
    void* data_ = nullptr;
    dtype type_ = dtype::none;
    std::optional<std::size_t> size_ = {};
    kernel::sum_kernels_function kernels_ = nullptr;
};

ADAMANT_END_NAMESPACE
