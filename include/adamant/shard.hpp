// SPDX-License-Identifier: Apache-2.0
// Shards: non-owning views of the arrays of a parameter, and lists of shards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/formats.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

template <class T>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;

template <class Range>
using element_of = std::iter_value_t<decltype(std::data(std::declval<Range&>()))>;

// Throws invalid_argument for arrays that are null, too large or overlap.
void check_arrays(shard_dtypes const& types, kernel::step_pointers const& pointers, std::size_t size);
// Throws invalid_argument unless an array of that type has the size that a param of `size` elements requires.
void check_size(char const* array, std::size_t array_size, std::size_t size, dtype type = dtype::float32);

} // namespace detail

/// A contiguous range that outlives the call: an lvalue such as a vector, or a span.
///
/// Excludes temporary vectors, whose elements would be destroyed before the first step.
template <class Range>
concept array_range = (std::is_lvalue_reference_v<Range> ||
                       detail::is_span<std::remove_cvref_t<Range>>)&&requires(std::remove_reference_t<Range>& r)
{
    {
        std::data(r)
        } -> std::contiguous_iterator;
    {
        std::size(r)
        } -> std::convertible_to<std::size_t>;
};
ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// A view of `size()` elements in up to five arrays.
///
/// | array      | contents                                     | element types |
/// |------------|----------------------------------------------|-------------------------------------------------------|
/// | param      | master weights, read and written             | float, bfloat16, float16, split_float32 | | grad |
/// gradients, read                              | float, bfloat16, float16                              | | exp_avg |
/// first moments, read and written; start at 0  | float, bfloat16, quantized8                           | | exp_avg_sq
/// | second moments, read and written; start at 0 | float, bfloat16; quantized8 if exp_avg is             | |
/// weight_out | the new weights rounded to 16 bits, written  | bfloat16, float16, or void: none; needs a float param |
///
/// With a param of split_float32, weight_out is bfloat16, read and written: the weights, of which param has the
/// residuals. See split_masters(). Moments of quantized8 are arrays of (n + 63) / 64 groups; zero bytes are zeros.
///
/// The arrays must outlive the view, may have any alignment, and must not overlap. Copyable. Concurrent const access is
/// safe; two concurrent steps over the same arrays are a data race.
template <param_storage Param, element_type Grad, moment_type ExpAvg, second_moment_type<ExpAvg> ExpAvgSq = ExpAvg,
          weight_out_type<Param> WeightOut = void>
class shard {
public:
    using param_type = Param;          ///< element type of param
    using grad_type = Grad;            ///< element type of grad
    using exp_avg_type = ExpAvg;       ///< element type of exp_avg
    using exp_avg_sq_type = ExpAvgSq;  ///< element type of exp_avg_sq
    using weight_out_type = WeightOut; ///< element type of weight_out; void: none
    /// The element types as run-time values.
    static constexpr shard_dtypes dtypes = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                            dtype_of<WeightOut>};

    /// Makes a view from pointers to n elements each. Pointers may be misaligned; none is read through its own type.
    /// @throws invalid_argument  naming the array, for a null pointer with n > 0 and for arrays that overlap.
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq,
          std::size_t n) requires std::is_void_v<WeightOut>
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(nullptr), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }
    /// @overload
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, WeightOut* weight_out,
          std::size_t n) requires(!std::is_void_v<WeightOut>)
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(weight_out), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }

    /// Makes a view from vectors, spans or other contiguous ranges, but not from temporaries that own their elements.
    /// @throws invalid_argument  naming the array, if the sizes differ or arrays overlap.
    template <array_range P, array_range G, array_range M, array_range V>
        requires std::is_void_v<WeightOut> shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq)
            : shard(std::data(param), std::data(grad), std::data(exp_avg), std::data(exp_avg_sq), std::size(param))
        {
            detail::check_size("grad", std::size(grad), size_);
            detail::check_size("exp_avg", std::size(exp_avg), size_, dtypes[shard_array::exp_avg]);
            detail::check_size("exp_avg_sq", std::size(exp_avg_sq), size_, dtypes[shard_array::exp_avg_sq]);
        }
        /// @overload
        template <array_range P, array_range G, array_range M, array_range V, array_range W>
            requires(!std::is_void_v<WeightOut>)
        shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq, W&& weight_out)
            : shard(std::data(param), std::data(grad), std::data(exp_avg), std::data(exp_avg_sq), std::data(weight_out),
                    std::size(param))
        {
            detail::check_size("grad", std::size(grad), size_);
            detail::check_size("exp_avg", std::size(exp_avg), size_, dtypes[shard_array::exp_avg]);
            detail::check_size("exp_avg_sq", std::size(exp_avg_sq), size_, dtypes[shard_array::exp_avg_sq]);
            detail::check_size("weight_out", std::size(weight_out), size_);
        }

        /// Returns the number of elements.
        [[nodiscard]] std::size_t size() const noexcept
        {
            return size_;
        }
        /// Returns the arrays' addresses.
        [[nodiscard]] kernel::step_pointers const& pointers() const noexcept
        {
            return pointers_;
        }

        /// Returns the average bytes that a step reads and writes for one element; see step_bytes().
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
shard(P&&, G&&, M&&, V&&)
    -> shard<detail::element_of<P>, detail::element_of<G>, detail::element_of<M>, detail::element_of<V>>;
template <array_range P, array_range G, array_range M, array_range V, array_range W>
shard(P&&, G&&, M&&, V&&, W&&) -> shard<detail::element_of<P>, detail::element_of<G>, detail::element_of<M>,
                                        detail::element_of<V>, detail::element_of<W>>;

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

/// A type-erased shard: addresses, size and format. A view like shard, which converts to it.
class any_shard {
public:
    /// Converts from a typed shard.
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    any_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& typed) noexcept // NOLINT: meant to convert
        : any_shard(step_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), typed.pointers(), typed.size())
    {
    }
    /// Makes a view of arrays whose types are known at run time. Unchecked.
    ADAMANT_ALWAYS_INLINE any_shard(shard_format const& format, kernel::step_pointers const& pointers,
                                    std::size_t size) noexcept
        : pointers_(pointers), size_(size), format_(&format)
    {
    }

    /// Returns the number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Returns the same shard at the given position in a parameter, which seeds stochastic rounding.
    ///
    /// By default a shard is elements [0, size()) of parameter 0. An optimizer ignores this and uses the names and
    /// offsets given to add_shard().
    [[nodiscard]] any_shard at(place_in_param const& place) const noexcept
    {
        any_shard result = *this;
        result.pointers_.place = place;
        return result;
    }
    /// Returns the arrays' addresses.
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }
    /// Returns the format: element types and kernels.
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    /// Returns the address of an array; not for the accumulator.
    ///
    /// Reads no other pointer, because a gradient's may change while threads work on the other arrays.
    [[nodiscard]] std::byte* data(shard_array::index array) const noexcept
    {
        switch (array) {
        case shard_array::param: return pointers_.param;
        case shard_array::grad: return const_cast<std::byte*>(pointers_.grad);
        case shard_array::exp_avg: return pointers_.exp_avg;
        case shard_array::exp_avg_sq: return pointers_.exp_avg_sq;
        default: return pointers_.weight_out;
        }
    }
    /// Returns the bytes of n elements of an array; also the byte offset of element n, see array_bytes().
    [[nodiscard]] std::size_t bytes(std::size_t array, std::size_t n) const noexcept
    {
        return array_bytes(format_->types[array], n);
    }
    /// Returns the kernel of a step on a tier that resolve_isa() returned.
    [[nodiscard]] kernel::step_function step_for(isa tier) const noexcept { return format_->step_for(tier); }
    /// Returns the average bytes that a step moves for one element; see step_bytes().
    [[nodiscard]] double bytes_per_element() const noexcept { return step_bytes(format_->types); }
    /// Returns the bytes that a step over the whole shard moves.
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return step_bytes(format_->types, size_); }

private:
    kernel::step_pointers pointers_;
    std::size_t size_;
    shard_format const* format_;
};

/// A type-erased shard with an optimizer's kernels. A view like shard, which converts to it.
class optimizer_shard : public any_shard {
public:
    /// Converts from a typed shard.
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    optimizer_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& typed) noexcept // NOLINT: meant to convert
        : any_shard(optimizer_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), typed.pointers(), typed.size())
    {
    }
    /// Makes an optimizer's shard of run-time types.
    ///
    /// In a header-only program its format must come from optimizer_format().
    ADAMANT_ALWAYS_INLINE explicit optimizer_shard(any_shard const& shard) noexcept : any_shard(shard) {}
};

/// A view of an accumulator: an array for optimizer::accumulate() of the shard's size, of float or bfloat16; or none.
class accumulator_array {
public:
    /// No accumulator.
    accumulator_array() = default;
    /// Makes a view of a run-time type: float32, bfloat16 or none. add_shard() refuses other types.
    ADAMANT_ALWAYS_INLINE accumulator_array(void* array, dtype type) noexcept
        : data_(array), type_(type), kernels_(kernel::sum_kernels_of(type))
    {
    }
    /// Makes a view from a pointer. A template, so that programs without accumulators do not compile their kernels.
    template <sum_type T>
    ADAMANT_ALWAYS_INLINE accumulator_array(T* array) noexcept // NOLINT: meant to convert
        : data_(array), type_(dtype_of<T>), kernels_(&kernel::sum_kernels_for<T>)
    {
    }
    /// Makes a view from an lvalue range such as a vector, a span or a buffer.
    template <array_range Range>
        requires sum_type<std::remove_cvref_t<detail::element_of<Range>>>
            ADAMANT_ALWAYS_INLINE accumulator_array(Range&& array)
    noexcept // NOLINT: meant to convert
        : accumulator_array(std::data(array))
    {
        size_ = std::size(array);
    }

    /// Returns the array's address.
    [[nodiscard]] void* data() const noexcept { return data_; }
    /// Returns the element type; `none` if there is no accumulator.
    [[nodiscard]] dtype type() const noexcept { return type_; }
    /// Returns the number of elements if it is known. It must then equal the shard's.
    [[nodiscard]] std::optional<std::size_t> size() const noexcept { return size_; }
    /// Returns the kernels for its type; null for a type that accumulators cannot have.
    [[nodiscard]] kernel::sum_kernels_function kernels() const noexcept { return kernels_; }

private:
    void* data_ = nullptr;
    dtype type_ = dtype::none;
    std::optional<std::size_t> size_ = {};
    kernel::sum_kernels_function kernels_ = nullptr;
};

/// A shard and the index of its parameter group. Shards of a group share their coefficients.
struct grouped_shard {
    any_shard shard;       ///< the arrays
    std::size_t group = 0; ///< index of the parameter group
};

/// A list of shards that are stepped together, in one handover to the threads. Make it once for many steps.
///
/// Does not own the arrays. Concurrent const access is safe.
class shard_list {
public:
    /// Makes a list. Takes O(n log n) time for n shards.
    /// @throws invalid_argument  naming the shards by index, if a written array overlaps an array of another shard,
    ///     because two threads would then access it concurrently.
    explicit shard_list(std::vector<grouped_shard> shards);
    /// Makes a list of a single group, number 0.
    /// @throws invalid_argument  as the other constructor does.
    explicit shard_list(std::vector<any_shard> const& shards);

    /// Returns the number of shards.
    [[nodiscard]] std::size_t size() const noexcept { return shards_.size(); }
    /// Returns shard i; unchecked.
    [[nodiscard]] grouped_shard const& operator[](std::size_t i) const noexcept;
    /// Returns the number of groups: the largest group index + 1, or 0 for an empty list.
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
    /// Returns the number of elements of all shards.
    [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
    /// Returns the bytes that a step over all shards moves.
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return bytes_moved_; }

    /// Returns the number of granules (see granule_elems). Shards are laid end to end, each padded to a granule.
    [[nodiscard]] std::size_t granules() const noexcept { return begins_.back(); }

    /// Calls piece(grouped_shard, begin, end) for the elements of each shard in granules [first, last), in order.
    ///
    /// Padding elements are skipped.
    template <class Piece>
    void for_each_piece(std::size_t first, std::size_t last, Piece const& piece) const
    {
        if (first >= last)
            return;
        auto next = std::upper_bound(begins_.begin(), begins_.end(), first);
        for (auto i = static_cast<std::size_t>(next - begins_.begin()) - 1; i < shards_.size() && begins_[i] < last;
             ++i) {
            std::size_t const begin = first > begins_[i] ? (first - begins_[i]) * granule_elems : 0;
            std::size_t const end = std::min(shards_[i].shard.size(), (last - begins_[i]) * granule_elems);
            if (begin < end)
                piece(shards_[i], begin, end);
        }
    }

private:
    static std::vector<grouped_shard> in_one_group(std::vector<any_shard> const& shards);

    void check_shards() const;

    std::vector<grouped_shard> shards_;
    std::vector<std::size_t> begins_; // first granule of each shard, then the number of granules
    std::size_t elements_ = 0;
    std::size_t bytes_moved_ = 0;
    std::size_t groups_ = 0;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/shard/shard.ipp>
#include <adamant/detail/shard/shard_list.ipp>
#endif
