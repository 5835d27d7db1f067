// SPDX-License-Identifier: Apache-2.0
// The step over anything that the fast paths refuse: values next to zero, infinities, NaNs, and what is left over for
// less than a group. Included by detail/kernels/fused_step.inl, once per instruction set.
//
// It is compiled once for all element types, which are values here: it converts stretches of all arrays into buffers of
// floats and back. That is slower than a loop for each combination of types would be, and a quarter of the code.

// A whole vector, or only its first `count` elements: then no byte beyond them is touched, and the other lanes are
// zero. Without masks they go through a buffer. That is slow, because a load waits for all earlier stores that it
// spans.
template <class T, bool Whole, class Simd = simd>
ADAMANT_SIMD simd::f32 load_first(std::byte const* address, std::size_t count)
{
    if constexpr (Whole) {
        return simd::template load<T>(address);
    } else if constexpr (Simd::has_masks) {
        return Simd::template load_first<T>(address, count);
    } else {
        alignas(64) std::byte buffer[simd::lanes * sizeof(T)] = {};
        __builtin_memcpy(buffer, address, count * sizeof(T));
        return simd::template load<T>(buffer);
    }
}
template <class T, bool Whole, class Simd = simd>
ADAMANT_SIMD void store_first(std::byte* address, simd::f32 x, std::size_t count)
{
    if constexpr (Whole) {
        simd::template store<T>(address, x);
    } else if constexpr (Simd::has_masks) {
        Simd::template store_first<T>(address, x, count);
    } else {
        alignas(64) std::byte buffer[simd::lanes * sizeof(T)];
        simd::template store<T>(buffer, x);
        __builtin_memcpy(address, buffer, count * sizeof(T));
    }
}

// A result of the careful path: rounding to bfloat16 can reach 2^-126 from above.
template <class T, bool Whole = true>
ADAMANT_SIMD void store_carefully(std::byte* address, simd::f32 x, std::size_t count = simd::lanes)
{
    x = simd::canonical(x, x);
    if constexpr (std::is_same_v<T, bfloat16>)
        x = simd::flush(x, bfloat16_flush_bits);
    store_first<T, Whole>(address, x, count);
}

// The types of the arrays of a shard.
struct array_types {
    dtype param, grad, exp_avg, exp_avg_sq, weight_out;
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr array_types types_of = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                         dtype_of<WeightOut>};

// Elements that are converted, stepped and converted back together.
inline constexpr std::size_t careful_elems = 64;
static_assert(careful_elems % simd::lanes == 0);
struct careful_buffer {
    alignas(64) std::byte floats[careful_elems * sizeof(float)];
};

// n elements, at most careful_elems, as floats. Behind them the last vector holds zeros.
template <class T>
ADAMANT_SIMD void widen_few(std::byte const* from, std::size_t n, careful_buffer& to)
{
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        simd::template store<float>(to.floats + i * sizeof(float), simd::template load<T>(from + i * sizeof(T)));
    if (i < n)
        simd::template store<float>(to.floats + i * sizeof(float), load_first<T, false>(from + i * sizeof(T), n - i));
}
[[gnu::noinline]] inline void widen_few(dtype type, std::byte const* array, std::size_t begin, std::size_t n,
                                        careful_buffer& to) noexcept
{
    std::byte const* const from = array + begin * size_bytes(type);
    switch (type) {
    case dtype::float32: widen_few<float>(from, n, to); break;
    case dtype::bfloat16: widen_few<bfloat16>(from, n, to); break;
    case dtype::split_float32: // fills the buffer; join_few() then replaces the values
    case dtype::float16: widen_few<float16>(from, n, to); break;
    case dtype::quantized8: // decoded and encoded in quantized_step.hpp
    case dtype::none: break;
    }
}
// And back.
template <class T>
ADAMANT_SIMD void narrow_few(careful_buffer const& from, std::size_t n, std::byte* to)
{
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        store_carefully<T>(to + i * sizeof(T), simd::template load<float>(from.floats + i * sizeof(float)));
    if (i < n)
        store_carefully<T, false>(to + i * sizeof(T), simd::template load<float>(from.floats + i * sizeof(float)),
                                  n - i);
}
[[gnu::noinline]] inline void narrow_few(dtype type, careful_buffer const& from, std::byte* array, std::size_t begin,
                                         std::size_t n) noexcept
{
    std::byte* const to = array + begin * size_bytes(type);
    switch (type) {
    case dtype::float32: narrow_few<float>(from, n, to); break;
    case dtype::bfloat16: narrow_few<bfloat16>(from, n, to); break;
    case dtype::float16: narrow_few<float16>(from, n, to); break;
    case dtype::split_float32: // stored with its weight
    case dtype::quantized8:
    case dtype::none: break;
    }
}

// The same for an array that may be rounded stochastically.
ADAMANT_SIMD void narrow_few(dtype type, bool stochastic, rounding_line const& line, careful_buffer const& from,
                             std::byte* array, std::size_t begin, std::size_t n)
{
    if (!stochastic || type != dtype::bfloat16) {
        narrow_few(type, from, array, begin, n);
        return;
    }
    for (std::size_t i = 0; i < n; ++i) {
        float x;
        __builtin_memcpy(&x, from.floats + i * sizeof x, sizeof x);
        bfloat16 const rounded = stochastically_rounded(x, random_half(line, begin + i));
        __builtin_memcpy(array + (begin + i) * sizeof rounded, &rounded, sizeof rounded);
    }
}

// Split master weights: the lower halves, which are widened as if they were floats, join their weights.
ADAMANT_SIMD void join_few(step_pointers const& a, std::size_t begin, std::size_t n, careful_buffer& to)
{
    for (std::size_t i = 0; i < n; ++i) {
        split_parts parts;
        __builtin_memcpy(&parts.weight, a.weight_out + (begin + i) * sizeof parts.weight, sizeof parts.weight);
        __builtin_memcpy(&parts.low, a.param + (begin + i) * sizeof parts.low, sizeof parts.low);
        float const x = joined_master(parts.weight, parts.low);
        __builtin_memcpy(to.floats + i * sizeof x, &x, sizeof x);
    }
}
ADAMANT_SIMD void split_few(careful_buffer const& from, step_pointers const& a, std::size_t begin, std::size_t n)
{
    for (std::size_t i = 0; i < n; ++i) {
        float x;
        __builtin_memcpy(&x, from.floats + i * sizeof x, sizeof x);
        split_parts const parts = split_master(x);
        __builtin_memcpy(a.weight_out + (begin + i) * sizeof parts.weight, &parts.weight, sizeof parts.weight);
        __builtin_memcpy(a.param + (begin + i) * sizeof parts.low, &parts.low, sizeof parts.low);
    }
}

// Steps elements [begin, end), and flushes after each operation by hand. Returns how many of the gradients are not
// finite.
[[gnu::noinline]] inline std::uint64_t careful_step(step_pointers const& a, array_types const& types, std::size_t begin,
                                                    std::size_t end, step_scalars const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    careful_buffer param, grad, exp_avg, exp_avg_sq;
    for (std::size_t n; begin < end; begin += n) {
        n = end - begin < careful_elems ? end - begin : careful_elems;
        widen_few(types.param, a.param, begin, n, param); // also of lower halves: that fills the last vector up
        if (types.param == dtype::split_float32)
            join_few(a, begin, n, param);
        widen_few(types.grad, a.grad, begin, n, grad);
        widen_few(types.exp_avg, a.exp_avg, begin, n, exp_avg);
        widen_few(types.exp_avg_sq, a.exp_avg_sq, begin, n, exp_avg_sq);
        for (std::size_t at = 0; at < n * sizeof(float); at += simd::lanes * sizeof(float)) {
            simd::f32 const g = simd::template load<float>(grad.floats + at);
            state_vectors s{simd::template load<float>(param.floats + at),
                            simd::template load<float>(exp_avg.floats + at),
                            simd::template load<float>(exp_avg_sq.floats + at)};
            guard<path::careful> nothing;
            update_moments<path::careful>(s, g, c, nothing);
            simd::template store<float>(param.floats + at,
                                        finish_param<path::careful>(start_param<path::careful>(s, c), c));
            simd::template store<float>(exp_avg.floats + at, s.exp_avg);
            simd::template store<float>(exp_avg_sq.floats + at, s.exp_avg_sq);
            nonfinite += simd::count_nonfinite(g);
        }
        if (types.param == dtype::split_float32)
            split_few(param, a, begin, n);
        else
            narrow_few(types.param, scalars.rounding.param, scalars.lines.param, param, a.param, begin, n);
        narrow_few(types.exp_avg, exp_avg, a.exp_avg, begin, n);
        narrow_few(types.exp_avg_sq, scalars.rounding.exp_avg_sq, scalars.lines.exp_avg_sq, exp_avg_sq, a.exp_avg_sq,
                   begin, n);
        if (types.param != dtype::split_float32)
            narrow_few(types.weight_out, param, a.weight_out, begin, n);
    }
    return nonfinite;
}
