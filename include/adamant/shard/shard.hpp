// SPDX-License-Identifier: Apache-2.0
// A shard: the five arrays of one stretch of parameters, as the caller owns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <ranges>
#include <string>
#include <type_traits>

#include <adamant/core/dtype.hpp>
#include <adamant/core/error.hpp>
#include <adamant/kernel/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE

template <class T>
concept element_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

// float16 is left out of the moments: the square of a gradient below 2^-12 would be zero in it.
template <class T>
concept moment_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;

// A 16-bit copy of the weights beside 16-bit params would say the same thing twice.
template <class WeightOut, class Param>
concept weight_out_type = std::is_void_v<WeightOut> ||
                          (std::is_same_v<Param, float> && element_type<WeightOut> && !std::is_same_v<WeightOut, float>);

namespace detail {
// A vector that lives on, or a span: not a temporary vector, whose elements would be gone before the first step.
template <class Range>
concept array_range = std::ranges::contiguous_range<Range> && std::ranges::borrowed_range<Range>;

inline constexpr char const* array_names[] = {"param", "grad", "exp_avg", "exp_avg_sq", "weight_out"};
}

// A view of `size()` elements in up to five arrays, none of which it owns; they must outlive it. Any array may lie at
// any address (of no particular alignment); no two may overlap. Copyable; const access from many threads is fine, but
// two steps over the same arrays at once are a data race.
//
//   param       master weights, read and written                float, bfloat16, float16
//   grad        read                                            float, bfloat16, float16
//   exp_avg     first moment, read and written; start at 0      float, bfloat16
//   exp_avg_sq  second moment, read and written; start at 0     float, bfloat16
//   weight_out  the new weights rounded to 16 bits, written     bfloat16, float16, or void: none; needs a float param
template <element_type Param, element_type Grad, moment_type ExpAvg, moment_type ExpAvgSq = ExpAvg,
          weight_out_type<Param> WeightOut = void>
class shard {
public:
    using param_type = Param;
    using grad_type = Grad;
    using exp_avg_type = ExpAvg;
    using exp_avg_sq_type = ExpAvgSq;
    using weight_out_type = WeightOut;

    // From pointers to n elements each. Throws invalid_argument, naming the array, for a null pointer with n > 0 and
    // for two arrays that overlap. This form takes misaligned pointers; none is read through its own type.
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, std::size_t n)
        requires std::is_void_v<WeightOut>
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(nullptr), n, unchecked{})
    {
        check();
    }
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, WeightOut* weight_out, std::size_t n)
        requires(!std::is_void_v<WeightOut>)
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(weight_out), n, unchecked{})
    {
        check();
    }

    // From vectors, spans or other contiguous ranges, but no temporary that owns its elements. Throws invalid_argument also where their sizes differ.
    template <detail::array_range P, detail::array_range G, detail::array_range M, detail::array_range V>
        requires std::is_void_v<WeightOut>
    shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq)
        : shard(std::ranges::data(param), std::ranges::data(grad), std::ranges::data(exp_avg),
                std::ranges::data(exp_avg_sq), std::ranges::size(param))
    {
        check_size("grad", std::ranges::size(grad));
        check_size("exp_avg", std::ranges::size(exp_avg));
        check_size("exp_avg_sq", std::ranges::size(exp_avg_sq));
    }
    template <detail::array_range P, detail::array_range G, detail::array_range M, detail::array_range V,
              detail::array_range W>
        requires(!std::is_void_v<WeightOut>)
    shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq, W&& weight_out)
        : shard(std::ranges::data(param), std::ranges::data(grad), std::ranges::data(exp_avg),
                std::ranges::data(exp_avg_sq), std::ranges::data(weight_out), std::ranges::size(param))
    {
        check_size("grad", std::ranges::size(grad));
        check_size("exp_avg", std::ranges::size(exp_avg));
        check_size("exp_avg_sq", std::ranges::size(exp_avg_sq));
        check_size("weight_out", std::ranges::size(weight_out));
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }

    // Bytes that a step over one element has to read and write, counting a read-modify-write as both.
    [[nodiscard]] static constexpr std::size_t bytes_per_element() noexcept
    {
        return 2 * (sizeof(Param) + sizeof(ExpAvg) + sizeof(ExpAvgSq)) + sizeof(Grad) + size_bytes(dtype_of<WeightOut>);
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

    void check_size(char const* array, std::size_t n) const
    {
        if (n != size_)
            throw invalid_argument("adamant: param has " + std::to_string(size_) + " elements but " + array + " has " +
                                   std::to_string(n) + "; the arrays of a shard must have one size");
    }

    void check() const
    {
        struct extent {
            char const* name;
            std::byte const* begin;
            std::size_t bytes;
        };
        if (size_ > std::numeric_limits<std::size_t>::max() / 8)
            throw invalid_argument("adamant: a shard of " + std::to_string(size_) +
                                   " elements does not fit in memory; was a negative size converted?");
        auto const& names = detail::array_names;
        extent const extents[] = {{names[0], pointers_.param, size_ * sizeof(Param)},
                                  {names[1], pointers_.grad, size_ * sizeof(Grad)},
                                  {names[2], pointers_.exp_avg, size_ * sizeof(ExpAvg)},
                                  {names[3], pointers_.exp_avg_sq, size_ * sizeof(ExpAvgSq)},
                                  {names[4], pointers_.weight_out, size_ * size_bytes(dtype_of<WeightOut>)}};
        for (extent const& a : extents) {
            if (a.bytes == 0)
                continue;
            if (a.begin == nullptr)
                throw invalid_argument(std::string("adamant: ") + a.name + " is null, but the shard has " +
                                       std::to_string(size_) + " elements");
            for (extent const* b = extents; b != &a; ++b) {
                auto const first = reinterpret_cast<std::uintptr_t>(a.begin);
                auto const second = reinterpret_cast<std::uintptr_t>(b->begin);
                if (b->bytes != 0 && first < second + b->bytes && second < first + a.bytes)
                    throw invalid_argument(std::string("adamant: ") + b->name + " and " + a.name +
                                           " overlap in memory; every array of a shard needs its own");
            }
        }
    }

    kernel::step_pointers pointers_;
    std::size_t size_;
};

template <class P, class G, class M, class V>
shard(P*, G const*, M*, V*, std::size_t) -> shard<P, G, M, V>;
template <class P, class G, class M, class V, class W>
shard(P*, G const*, M*, V*, W*, std::size_t) -> shard<P, G, M, V, W>;
template <detail::array_range P, detail::array_range G, detail::array_range M, detail::array_range V>
shard(P&&, G&&, M&&, V&&) -> shard<std::ranges::range_value_t<P>, std::ranges::range_value_t<G>,
                                   std::ranges::range_value_t<M>, std::ranges::range_value_t<V>>;
template <detail::array_range P, detail::array_range G, detail::array_range M, detail::array_range V,
          detail::array_range W>
shard(P&&, G&&, M&&, V&&, W&&)
    -> shard<std::ranges::range_value_t<P>, std::ranges::range_value_t<G>, std::ranges::range_value_t<M>,
             std::ranges::range_value_t<V>, std::ranges::range_value_t<W>>;

ADAMANT_END_NAMESPACE
