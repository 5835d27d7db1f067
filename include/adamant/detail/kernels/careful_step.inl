// SPDX-License-Identifier: Apache-2.0
// The careful step, for data that the fast paths refuse: values near zero, infinities, NaNs, and shards of less than a
// group. Included by detail/kernels/fused_step.inl, once per instruction set.
//
// Element types are run-time values here, so the step is compiled once for all of them: it converts parts of all arrays
// to buffers of floats and back. It is slower than a loop for each combination of types, and a quarter of the code.

// Load or store a whole vector, or only its first `count` elements. A partial access touches no byte beyond these
// elements, and a partial load sets the other lanes to zero. Without masks it uses a buffer, which is slow, because a
// load waits for all earlier stores that it spans.
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

// Stores a result of the careful path. Flushes again, because rounding to bfloat16 can reach 2^-126 from above.
template <class T, bool Whole = true>
ADAMANT_SIMD void store_carefully(std::byte* address, simd::f32 x, std::size_t count = simd::lanes)
{
    x = simd::canonical(x, x);
    if constexpr (std::is_same_v<T, bfloat16>)
        x = simd::flush(x, bfloat16_flush_bits);
    store_first<T, Whole>(address, x, count);
}

static_assert(careful_elems % simd::lanes == 0);

// Converts n elements, at most careful_elems, to floats. Fills the last vector up with zeros.
template <class T>
ADAMANT_SIMD void widen_few(std::byte const* source, std::size_t n, careful_buffer& target)
{
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        simd::template store<float>(target.floats + i * sizeof(float), simd::template load<T>(source + i * sizeof(T)));
    if (i < n)
        simd::template store<float>(target.floats + i * sizeof(float),
                                    load_first<T, false>(source + i * sizeof(T), n - i));
}
[[gnu::noinline]] inline void widen_few(dtype type, std::byte const* array, std::size_t begin, std::size_t n,
                                        careful_buffer& target) noexcept
{
    detail::vzeroupper_scope const at_end;
    std::byte const* const source = array + begin * size_bytes(type);
    switch (type) {
    case dtype::float32: widen_few<float>(source, n, target); break;
    case dtype::bfloat16: widen_few<bfloat16>(source, n, target); break;
    case dtype::split_float32: // fills the buffer; join_few() then replaces the values
    case dtype::float16: widen_few<float16>(source, n, target); break;
    case dtype::quantized8: // decoded and encoded in quantized_step.hpp
    case dtype::none: break;
    }
}
// Converts n floats to T.
template <class T>
ADAMANT_SIMD void narrow_few(careful_buffer const& source, std::size_t n, std::byte* target)
{
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        store_carefully<T>(target + i * sizeof(T), simd::template load<float>(source.floats + i * sizeof(float)));
    if (i < n)
        store_carefully<T, false>(target + i * sizeof(T), simd::template load<float>(source.floats + i * sizeof(float)),
                                  n - i);
}
[[gnu::noinline]] inline void narrow_few(dtype type, careful_buffer const& source, std::byte* array, std::size_t begin,
                                         std::size_t n) noexcept
{
    detail::vzeroupper_scope const at_end;
    std::byte* const target = array + begin * size_bytes(type);
    switch (type) {
    case dtype::float32: narrow_few<float>(source, n, target); break;
    case dtype::bfloat16: narrow_few<bfloat16>(source, n, target); break;
    case dtype::float16: narrow_few<float16>(source, n, target); break;
    case dtype::split_float32: // stored with its weight
    case dtype::quantized8:
    case dtype::none: break;
    }
}

// Converts floats to an array that may be rounded stochastically.
ADAMANT_SIMD void narrow_few(dtype type, bool stochastic, rounding_line const& line, careful_buffer const& source,
                             std::byte* array, std::size_t begin, std::size_t n)
{
    if (stochastic && type == dtype::bfloat16)
        round_few(line, source, array, begin, n);
    else
        narrow_few(type, source, array, begin, n);
}

// Steps elements [begin, end), and flushes explicitly after each operation. Returns the number of gradients that are
// not finite.
[[gnu::noinline]] inline std::uint64_t careful_step(step_pointers const& a, array_types const& types, std::size_t begin,
                                                    std::size_t end, step_scalars const& scalars) noexcept
{
    detail::vzeroupper_scope const at_end;
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    careful_buffer param, grad, exp_avg, exp_avg_sq, old_weights;
    published_weights const published = published_by(a, types);
    for (std::size_t n; begin < end; begin += n) {
        n = end - begin < careful_elems ? end - begin : careful_elems;
        if (a.copies != nullptr)
            copy_few_states(a, types, begin, n);
        widen_few(types.param, a.param, begin, n, param); // for split masters, too, to fill the last vector up
        if (types.param == dtype::split_float32)
            join_few(a, begin, n, param);
        if (a.changed != nullptr && published.rounds)
            narrow_few(types.weight_out, param, old_weights.floats, 0, n);
        else if (a.changed != nullptr)
            copy_few(old_weights.floats, published.array + begin * published.elem_bytes, n * published.elem_bytes);
        widen_few(types.grad, a.grad, begin, n, grad);
        widen_few(types.exp_avg, a.exp_avg, begin, n, exp_avg);
        widen_few(types.exp_avg_sq, a.exp_avg_sq, begin, n, exp_avg_sq);
        for (std::size_t byte = 0; byte < n * sizeof(float); byte += simd::lanes * sizeof(float)) {
            simd::f32 const g = simd::template load<float>(grad.floats + byte);
            state_vectors s{simd::template load<float>(param.floats + byte),
                            simd::template load<float>(exp_avg.floats + byte),
                            simd::template load<float>(exp_avg_sq.floats + byte)};
            guard<path::careful> nothing;
            update_moments<path::careful>(s, g, c, nothing);
            simd::template store<float>(param.floats + byte,
                                        finish_param<path::careful>(start_param<path::careful>(s, c), c));
            simd::template store<float>(exp_avg.floats + byte, s.exp_avg);
            simd::template store<float>(exp_avg_sq.floats + byte, s.exp_avg_sq);
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
        if (a.changed != nullptr)
            set_changed(a.changed, begin,
                        differing_few(old_weights.floats, published.array + begin * published.elem_bytes, n,
                                      published.elem_bytes),
                        n);
    }
    return nonfinite;
}
