// SPDX-License-Identifier: Apache-2.0
// A shard: the five arrays of one stretch of parameters, as the caller owns them.
#pragma once

#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

#include <adamant/shard/format.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

template <class T>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;

template <class Range>
using element_of = std::iter_value_t<decltype(std::data(std::declval<Range&>()))>;

// Throws what shard's constructors do about arrays that are null, too large or overlap.
void check_arrays(shard_dtypes const& types, kernel::step_pointers const& pointers, std::size_t size);
// Throws where an array of that type has another size than a param of `size` elements wants.
void check_size(char const* array, std::size_t found, std::size_t size, dtype type = dtype::float32);

} // namespace detail

// A vector that lives on, or a span: not a temporary vector, whose elements would be gone before the first step.
template <class Range>
concept array_range = (std::is_lvalue_reference_v<Range> || detail::is_span<std::remove_cvref_t<Range>>) &&
                      requires(std::remove_reference_t<Range>& r) {
                          { std::data(r) } -> std::contiguous_iterator;
                          { std::size(r) } -> std::convertible_to<std::size_t>;
                      };
ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

// A view of `size()` elements in up to five arrays, none of which it owns; they must outlive it. Any array may lie at
// any address (of no particular alignment); no two may overlap. Copyable; const access from many threads is fine, but
// two steps over the same arrays at once are a data race.
//
//   param       master weights, read and written                float, bfloat16, float16, split_float32
//   grad        read                                            float, bfloat16, float16
//   exp_avg     first moment, read and written; start at 0      float, bfloat16, quantized8
//   exp_avg_sq  second moment, read and written; start at 0     float, bfloat16, quantized8 if exp_avg is
//   weight_out  the new weights rounded to 16 bits, written     bfloat16, float16, or void: none; needs a float param
//
// With a param of split_float32, weight_out is bfloat16, read and written: the master's upper half, see split_masters().
// Moments of quantized8 are arrays of (n + 63) / 64 groups; zero bytes are zeros.
template <param_storage Param, element_type Grad, moment_type ExpAvg, second_moment_type<ExpAvg> ExpAvgSq = ExpAvg,
          weight_out_type<Param> WeightOut = void>
class shard {
public:
    using param_type = Param;
    using grad_type = Grad;
    using exp_avg_type = ExpAvg;
    using exp_avg_sq_type = ExpAvgSq;
    using weight_out_type = WeightOut;
    static constexpr shard_dtypes dtypes = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                            dtype_of<WeightOut>};

    // From pointers to n elements each. Throws invalid_argument, naming the array, for a null pointer with n > 0 and
    // for two arrays that overlap. This form takes misaligned pointers; none is read through its own type.
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, std::size_t n)
        requires std::is_void_v<WeightOut>
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(nullptr), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, WeightOut* weight_out, std::size_t n)
        requires(!std::is_void_v<WeightOut>)
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(weight_out), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }

    // From vectors, spans or other contiguous ranges, but no temporary that owns its elements. Throws invalid_argument also where their sizes differ.
    template <array_range P, array_range G, array_range M, array_range V>
        requires std::is_void_v<WeightOut>
    shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq)
        : shard(std::data(param), std::data(grad), std::data(exp_avg),
                std::data(exp_avg_sq), std::size(param))
    {
        detail::check_size("grad", std::size(grad), size_);
        detail::check_size("exp_avg", std::size(exp_avg), size_, dtypes[shard_array::exp_avg]);
        detail::check_size("exp_avg_sq", std::size(exp_avg_sq), size_, dtypes[shard_array::exp_avg_sq]);
    }
    template <array_range P, array_range G, array_range M, array_range V,
              array_range W>
        requires(!std::is_void_v<WeightOut>)
    shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq, W&& weight_out)
        : shard(std::data(param), std::data(grad), std::data(exp_avg),
                std::data(exp_avg_sq), std::data(weight_out), std::size(param))
    {
        detail::check_size("grad", std::size(grad), size_);
        detail::check_size("exp_avg", std::size(exp_avg), size_, dtypes[shard_array::exp_avg]);
        detail::check_size("exp_avg_sq", std::size(exp_avg_sq), size_, dtypes[shard_array::exp_avg_sq]);
        detail::check_size("weight_out", std::size(weight_out), size_);
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }

    // Bytes that a step over one element has to read and write, counting a read-modify-write as both; on average, where
    // elements share a scale.
    [[nodiscard]] static constexpr double bytes_per_element() noexcept
    {
        return step_bytes(dtypes);
    }

private:
    struct unchecked {};
    shard(void* param, void const* grad, void* exp_avg, void* exp_avg_sq, void* weight_out, std::size_t n,
          unchecked) noexcept
        : pointers_{static_cast<std::byte*>(param), static_cast<std::byte const*>(grad),
                    static_cast<std::byte*>(exp_avg), static_cast<std::byte*>(exp_avg_sq),
                    static_cast<std::byte*>(weight_out)},
          size_(n)
    {
    }

    kernel::step_pointers pointers_;
    std::size_t size_;
};

template <class P, class G, class M, class V>
shard(P*, G const*, M*, V*, std::size_t) -> shard<P, G, M, V>;
template <class P, class G, class M, class V, class W>
shard(P*, G const*, M*, V*, W*, std::size_t) -> shard<P, G, M, V, W>;
template <array_range P, array_range G, array_range M, array_range V>
shard(P&&, G&&, M&&, V&&) -> shard<detail::element_of<P>, detail::element_of<G>,
                                   detail::element_of<M>, detail::element_of<V>>;
template <array_range P, array_range G, array_range M, array_range V,
          array_range W>
shard(P&&, G&&, M&&, V&&, W&&)
    -> shard<detail::element_of<P>, detail::element_of<G>, detail::element_of<M>,
             detail::element_of<V>, detail::element_of<W>>;

ADAMANT_END_INLINE_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/shard/shard.ipp>
#endif
