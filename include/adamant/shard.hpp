// SPDX-License-Identifier: Apache-2.0
// Shards: views of the arrays of one parameter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/detail/shard/granule_layout.hpp>

// ---- Shards of types that are known at compile time

ADAMANT_BEGIN_NAMESPACE

class any_shard;

/// Number of 64-bit words for the bits that mark changed weights of n elements; see any_shard::track().
[[nodiscard]] constexpr std::size_t changed_words(std::size_t n) noexcept
{
    return n / kernel::changed_word_elems + (n % kernel::changed_word_elems != 0);
}

namespace detail {

template <class T>
inline constexpr bool is_span = false;
template <class T, std::size_t N>
inline constexpr bool is_span<std::span<T, N>> = true;

template <class Range>
using element_of = std::iter_value_t<decltype(std::data(std::declval<Range&>()))>;

// Checks arrays as the constructors of shard do: null, too large, overlapping.
void check_arrays(shard_dtypes const& types, kernel::step_pointers const& pointers, std::size_t size);
// Checks the bits for any_shard::track().
void check_changed(any_shard const& shard, std::span<std::uint64_t> changed);
// Refuses a float32 weight_out, which no optimizer writes.
void refuse_param_copy(shard_dtypes const& types);
// Checks that `found`, the size of an array of that type, fits a param of `size` elements.
void check_size(char const* array, std::size_t found, std::size_t size, dtype type = dtype::float32);

} // namespace detail

/// A span, or a vector that is not a temporary: elements of a temporary vector would not live until the first step.
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

/// View of `size()` elements in up to five arrays, which must outlive it. Arrays may have any alignment and must not
/// overlap. Copyable. Thread safety: const access from any thread; two concurrent steps over the same arrays are a data
/// race.
///
/// | array | contents | types |
/// | --- | --- | --- |
/// | `param` | master weights, read and written | float, bfloat16, float16, split_float32 |
/// | `grad` | gradient, read | float, bfloat16, float16 |
/// | `exp_avg` | first moment, read and written | float, bfloat16, quantized8 |
/// | `exp_avg_sq` | second moment, read and written | float, bfloat16; quantized8 if exp_avg is |
/// | `weight_out` | new weights in 16 bits, written | void (none); bfloat16 or float16 if param is not 16 bits |
///
/// Moments are initially 0. For step(), weight_out may also be float: a copy of a float param. With a split_float32
/// param, weight_out is bfloat16, read and written; see split_masters(). quantized8 moments are arrays of (n + 63) / 64
/// groups. A group whose bytes are all 0 holds 64 zeros.
template <param_storage Param, element_type Grad, moment_type ExpAvg, second_moment_type<ExpAvg> ExpAvgSq = ExpAvg,
          weight_out_type<Param> WeightOut = void>
class shard {
public:
    using param_type = Param;          ///< type of param
    using grad_type = Grad;            ///< type of grad
    using exp_avg_type = ExpAvg;       ///< type of exp_avg
    using exp_avg_sq_type = ExpAvgSq;  ///< type of exp_avg_sq
    using weight_out_type = WeightOut; ///< type of weight_out, or void
    /// The types as a value.
    static constexpr shard_dtypes dtypes = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                            dtype_of<WeightOut>};

    /// From pointers to n elements each, of any alignment.
    /// @throws invalid_argument, naming the array, for a null pointer with n > 0 and for arrays that overlap
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq,
          std::size_t n) requires std::is_void_v<WeightOut>
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(nullptr), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }
    /// The same with weight_out.
    shard(Param* param, Grad const* grad, ExpAvg* exp_avg, ExpAvgSq* exp_avg_sq, WeightOut* weight_out,
          std::size_t n) requires(!std::is_void_v<WeightOut>)
        : shard(param, grad, exp_avg, exp_avg_sq, static_cast<void*>(weight_out), n, unchecked{})
    {
        detail::check_arrays(dtypes, pointers_, size_);
    }

    /// From vectors, spans or other contiguous ranges, but no temporary that owns its elements.
    /// @throws invalid_argument as above, and if sizes differ
    template <array_range P, array_range G, array_range M, array_range V>
        requires std::is_void_v<WeightOut> shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq)
            : shard(std::data(param), std::data(grad), std::data(exp_avg), std::data(exp_avg_sq),
                    static_cast<void*>(nullptr), std::size(param), unchecked{})
        {
            check_sizes(std::size(grad), std::size(exp_avg), std::size(exp_avg_sq));
            detail::check_arrays(dtypes, pointers_, size_);
        }
        /// The same with weight_out.
        template <array_range P, array_range G, array_range M, array_range V, array_range W>
            requires(!std::is_void_v<WeightOut>)
        shard(P&& param, G&& grad, M&& exp_avg, V&& exp_avg_sq, W&& weight_out)
            : shard(std::data(param), std::data(grad), std::data(exp_avg), std::data(exp_avg_sq),
                    static_cast<void*>(std::data(weight_out)), std::size(param), unchecked{})
        {
            check_sizes(std::size(grad), std::size(exp_avg), std::size(exp_avg_sq));
            detail::check_size("weight_out", std::size(weight_out), size_);
            detail::check_arrays(dtypes, pointers_, size_);
        }

        /// Number of elements.
        [[nodiscard]] std::size_t size() const noexcept
        {
            return size_;
        }
        /// The arrays as kernels take them.
        [[nodiscard]] kernel::step_pointers const& pointers() const noexcept
        {
            return pointers_;
        }

        /// Bytes that a step reads and writes for an element, on average.
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

        // Called before the check for overlaps, which assumes that every array has as many elements as param.
        void check_sizes(std::size_t grad, std::size_t exp_avg, std::size_t exp_avg_sq) const
        {
            detail::check_size("grad", grad, size_);
            detail::check_size("exp_avg", exp_avg, size_, dtypes[shard_array::exp_avg]);
            detail::check_size("exp_avg_sq", exp_avg_sq, size_, dtypes[shard_array::exp_avg_sq]);
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

// ---- Shards of types that are known at run time

ADAMANT_BEGIN_NAMESPACE

/// Arrays, size and format of a shard whose types are known at run time. A shard<...> converts to it. A view.
class any_shard {
public:
    /// Converts a shard of known types.
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    any_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& typed) noexcept // NOLINT: meant to convert
        : any_shard(step_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), typed.pointers(), typed.size())
    {
    }
    /// From arrays whose types are known at run time, unchecked.
    ADAMANT_ALWAYS_INLINE any_shard(shard_format const& format, kernel::step_pointers const& pointers,
                                    std::size_t size) noexcept
        : pointers_(pointers), size_(size), format_(&format)
    {
    }

    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    /// Returns the same shard with its position in a parameter, which stochastic rounding uses. Default: the start of
    /// parameter number 0. With 8-bit moments, position.begin must be a multiple of 64; this is not checked. An
    /// optimizer ignores this position and uses the name and position that add_shard() got.
    [[nodiscard]] any_shard at(param_position const& position) const noexcept
    {
        any_shard placed = *this;
        placed.pointers_.position = position;
        return placed;
    }
    /// Returns the same shard with bits for changed weights. `changed` has changed_words(size()) words, which must
    /// outlive the shard. Bit i % 64 of word i / 64 belongs to element i. A step sets the bits of the elements whose
    /// published weight it changes, and leaves all others as they are, so bits accumulate until the caller clears them.
    /// A step that is skipped, abandoned or rolled back leaves every bit as it was.
    ///
    /// The published weight is weight_out, or param if the shard has no weight_out. Before the first step, weight_out
    /// must hold the rounded params. The bits are the same for any instruction set, number of threads, shard boundaries
    /// and backend. Each shard has words of its own, so steps over different shards may run concurrently. Within a
    /// step, only one thread writes each word.
    /// @throws invalid_argument for another number of words, and for words that overlap an array of the shard
    [[nodiscard]] any_shard track(std::span<std::uint64_t> changed) const
    {
        detail::check_changed(*this, changed);
        any_shard tracked = *this;
        tracked.pointers_.changed = changed.data();
        return tracked;
    }
    /// The words for changed weights; null if they are not tracked.
    [[nodiscard]] std::uint64_t* changed() const noexcept { return pointers_.changed; }
    /// The arrays as kernels take them.
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }
    /// The format.
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    /// The array that `array` names. Reads only that pointer, so one thread may replace the gradient while others
    /// call data() for other arrays.
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
    /// Bytes of n elements of that array, which is the offset of element n.
    [[nodiscard]] std::size_t bytes(std::size_t array, std::size_t n) const noexcept
    {
        return array_bytes(format_->types[array], n);
    }
    /// The step kernel for its types on a tier from resolve_isa().
    [[nodiscard]] kernel::step_function step_for(isa tier) const noexcept { return format_->step_for(tier); }
    /// Bytes that a step moves for an element, on average; see step_bytes().
    [[nodiscard]] double bytes_per_element() const noexcept { return step_bytes(format_->types); }
    /// Bytes that a step moves.
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return step_bytes(format_->types, size_); }

private:
    kernel::step_pointers pointers_;
    std::size_t size_;
    shard_format const* format_;
};

// ---- Shards of an optimizer

/// An any_shard with all kernels that an optimizer needs. A shard<...> converts to it. A view.
class optimizer_shard : public any_shard {
public:
    /// Converts a shard of known types.
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    ADAMANT_ALWAYS_INLINE
    optimizer_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& typed) noexcept // NOLINT: meant to convert
        : any_shard(optimizer_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(), typed.pointers(), typed.size())
    {
    }
    /// Only step() writes a float32 weight_out.
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq>
    optimizer_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, float> const& typed) = delete;
    /// Converts a shard whose types are known at run time. In a header-only program, its format must be a result of
    /// optimizer_format(), which has the kernels of an optimizer.
    /// @throws invalid_argument for a float32 weight_out
    ADAMANT_ALWAYS_INLINE explicit optimizer_shard(any_shard const& shard) : any_shard(shard)
    {
        detail::refuse_param_copy(shard.format().types);
    }
    /// See any_shard::track().
    [[nodiscard]] optimizer_shard track(std::span<std::uint64_t> changed) const
    {
        optimizer_shard tracked = *this;
        static_cast<any_shard&>(tracked) = any_shard::track(changed);
        return tracked;
    }
};

/// View of the array for optimizer::accumulate(), which has the shard's size and is float or bfloat16. The default is
/// no array.
class accumulator_array {
public:
    accumulator_array() = default;
    /// Of a type known at run time: float32, bfloat16 or none; add_shard() refuses others.
    ADAMANT_ALWAYS_INLINE accumulator_array(void* array, dtype type) noexcept
        : data_(array), type_(type), kernels_(kernel::sum_kernels_of(type))
    {
    }
    /// From a pointer. A template, so that programs without accumulators do not contain the kernels of accumulators.
    template <sum_type T>
    ADAMANT_ALWAYS_INLINE accumulator_array(T* array) noexcept // NOLINT: meant to convert
        : data_(array), type_(dtype_of<T>), kernels_(&kernel::sum_kernels_for<T>)
    {
    }
    /// From a vector, span or buffer that outlives the optimizer.
    template <array_range Range>
        requires sum_type<std::remove_cvref_t<detail::element_of<Range>>>
            ADAMANT_ALWAYS_INLINE accumulator_array(Range&& array)
    noexcept // NOLINT: meant to convert
        : accumulator_array(std::data(array))
    {
        size_ = std::size(array);
    }

    /// The array; null: none.
    [[nodiscard]] void* data() const noexcept { return data_; }
    [[nodiscard]] dtype type() const noexcept { return type_; } ///< none: there is no array
    /// Number of elements, if known; it must then be that of the shard.
    [[nodiscard]] std::optional<std::size_t> size() const noexcept { return size_; }
    /// Kernels for the type; null for a type that no accumulator has.
    [[nodiscard]] kernel::sum_kernels_function kernels() const noexcept { return kernels_; }

private:
    void* data_ = nullptr;
    dtype type_ = dtype::none;
    std::optional<std::size_t> size_ = {};
    kernel::sum_kernels_function kernels_ = nullptr;
};

// ---- Lists of shards: all tensors of a model in one step

/// A shard and the number of its parameter group. A step updates the shard with the coefficients of that group.
struct grouped_shard {
    any_shard shard;       ///< the shard
    std::size_t group = 0; ///< index of its parameter group
};

/// Shards that are updated together, in one hand-over to the threads. Owns no arrays. Thread safety: const access from
/// any thread.
class shard_list {
public:
    /// Takes time proportional to the number of shards.
    /// @throws invalid_argument, naming the shards by index, if an array that a step writes overlaps an array of
    /// another shard
    explicit shard_list(std::vector<grouped_shard> shards);
    /// Puts all shards into group 0.
    explicit shard_list(std::vector<any_shard> const& shards);

    /// Number of shards.
    [[nodiscard]] std::size_t size() const noexcept { return shards_.size(); }
    /// Shard i, unchecked.
    [[nodiscard]] grouped_shard const& operator[](std::size_t i) const noexcept;
    /// One more than the largest group number; 0 for an empty list.
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
    /// Number of elements of all shards.
    [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
    /// Bytes that a step moves.
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return bytes_moved_; }

    /// Number of granules: shards are laid end to end, each padded to a granule (see granule_elems).
    [[nodiscard]] std::size_t granules() const noexcept { return layout_.granules(); }

    /// Calls piece(grouped_shard, begin, end) in order for the elements in granules first to last - 1.
    template <class Piece>
    void for_each_piece(std::size_t first, std::size_t last, Piece const& piece) const
    {
        layout_.for_each_piece(first, last, [&](std::size_t i, std::size_t begin, std::size_t end) {
            end = std::min(shards_[i].shard.size(), end);
            if (begin < end)
                piece(shards_[i], begin, end);
        });
    }

private:
    static std::vector<grouped_shard> in_one_group(std::vector<any_shard> const& shards);

    void check_shards() const;

    std::vector<grouped_shard> shards_;
    detail::granule_layout layout_;
    std::size_t elements_ = 0;
    std::size_t bytes_moved_ = 0;
    std::size_t groups_ = 0;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/shard/shard.ipp>
#include <adamant/detail/shard/shard_list.ipp>
#endif
