// SPDX-License-Identifier: Apache-2.0
// Preprocessing of gradients before a step: accumulation over micro-steps, zeroing of infinities and NaNs, and
// clamping. Also joins and splits masters for steps that leave a record. Works on pieces that stay in cache.
// detail/kernels/step_kernels.inl includes it once per instruction set, after detail/kernels/fused_step.inl.

// Adds one vector, or its first elements, of two gradients, as reference::added(). Sum is void if there is nothing to
// add to.
template <bool Whole, class Grad, class Sum, class Out>
ADAMANT_SIMD void add_vector(std::byte const* grad, std::byte const* sum, std::size_t count, std::byte* out)
{
    simd::f32 total = simd::flush(load_first<Grad, Whole>(grad, count), float_min_normal_bits);
    if constexpr (!std::is_void_v<Sum>) {
        simd::f32 const before = simd::flush(load_first<Sum, Whole>(sum, count), float_min_normal_bits);
        total = simd::flush(simd::fma(simd::set(1.0f), before, total), float_min_normal_bits);
    }
    store_carefully<Out, Whole>(out, total, count);
}

// See add_gradients_function.
template <class Grad, class Sum, class Out>
void add_gradients(std::byte const* grad, std::byte const* sum, std::size_t n, std::byte* out) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed);
    constexpr std::size_t sum_bytes = size_bytes(dtype_of<Sum>);
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        add_vector<true, Grad, Sum, Out>(grad + i * sizeof(Grad), sum + i * sum_bytes, simd::lanes,
                                         out + i * sizeof(Out));
    if (i < n)
        add_vector<false, Grad, Sum, Out>(grad + i * sizeof(Grad), sum + i * sum_bytes, n - i, out + i * sizeof(Out));
}

template <bool Whole, bool First, class Grad>
ADAMANT_SIMD void add_scaled_vector(std::byte const* grad, std::size_t count, simd::f32 scale, std::byte* sum)
{
    simd::f32 const g = simd::flush(load_first<Grad, Whole>(grad, count), float_min_normal_bits);
    simd::f32 total = simd::flush(simd::mul(g, scale), float_min_normal_bits);
    if constexpr (!First) {
        simd::f32 const before = simd::flush(load_first<float, Whole>(sum, count), float_min_normal_bits);
        total = simd::flush(simd::fma(simd::set(1.0f), before, total), float_min_normal_bits);
    }
    store_carefully<float, Whole>(sum, total, count);
}
template <bool First, class Grad>
ADAMANT_SIMD void add_all_scaled(std::byte const* grad, std::size_t n, simd::f32 scale, std::byte* sum)
{
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        add_scaled_vector<true, First, Grad>(grad + i * sizeof(Grad), simd::lanes, scale, sum + i * sizeof(float));
    if (i < n)
        add_scaled_vector<false, First, Grad>(grad + i * sizeof(Grad), n - i, scale, sum + i * sizeof(float));
}
// See add_scaled_function.
template <class Grad>
void add_scaled(std::byte const* grad, std::size_t n, float scale, bool first, float* sum) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed);
    std::byte* const target = reinterpret_cast<std::byte*>(sum);
    if (first)
        add_all_scaled<true, Grad>(grad, n, simd::set(scale), target);
    else
        add_all_scaled<false, Grad>(grad, n, simd::set(scale), target);
}

template <bool Whole>
ADAMANT_SIMD void clamp_vector(std::byte* grad, std::size_t count, bool zero_nonfinite, simd::f32 scale,
                               simd::u32 bound_bits)
{
    simd::f32 g = load_first<float, Whole>(grad, count);
    if (zero_nonfinite) // the mask is all ones for finite elements, else zero
        g = simd::from_bits(simd::bits(g) & simd::finite_mask(g));
    g = simd::flush(simd::mul(simd::flush(g, float_min_normal_bits), scale), float_min_normal_bits);
    simd::u32 const sign = simd::bits(g) & simd::set(float_sign_bit);
    g = simd::canonical(simd::from_bits(simd::min(simd::abs_bits(g), bound_bits) | sign), g);
    store_first<float, Whole>(grad, g, count);
}

// See clamp_gradient_function.
inline void clamp_gradient(std::byte* grad, std::size_t n, bool zero_nonfinite, float scale, float bound) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed);
    simd::f32 const scales = simd::set(scale);
    simd::u32 const bound_bits = simd::abs_bits(simd::set(bound));
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        clamp_vector<true>(grad + i * sizeof(float), simd::lanes, zero_nonfinite, scales, bound_bits);
    if (i < n)
        clamp_vector<false>(grad + i * sizeof(float), n - i, zero_nonfinite, scales, bound_bits);
}

// See round_weights_function.
template <class WeightOut>
void round_weights(std::byte const* param, std::size_t n, std::byte* out) noexcept
{
    add_gradients<float, void, WeightOut>(param, nullptr, n, out);
}

// See join_function.
inline void join_masters(std::byte const* weight, std::byte const* low, std::size_t n, std::byte* master) noexcept
{
    detail::vzeroupper_scope const at_end;
    std::size_t i = 0;
    for (; n - i >= 2 * simd::lanes; i += 2 * simd::lanes) {
        simd::f32 a, b;
        load_params<split_float32, false>(low + i * sizeof(split_float32), weight + i * sizeof(bfloat16), a, b);
        simd::template store<float>(master + i * sizeof(float), a);
        simd::template store<float>(master + (i + simd::lanes) * sizeof(float), b);
    }
    for (; i < n; ++i) {
        split_parts parts;
        __builtin_memcpy(&parts.weight, weight + i * sizeof parts.weight, sizeof parts.weight);
        __builtin_memcpy(&parts.low, low + i * sizeof parts.low, sizeof parts.low);
        float const x = joined_master(parts.weight, parts.low);
        __builtin_memcpy(master + i * sizeof x, &x, sizeof x);
    }
}
// See split_function.
inline void split_masters(std::byte const* master, std::size_t n, std::byte* weight, std::byte* low) noexcept
{
    detail::vzeroupper_scope const at_end;
    std::size_t i = 0;
    for (; n - i >= 2 * simd::lanes; i += 2 * simd::lanes) {
        simd::f32 const a = simd::template load<float>(master + i * sizeof(float));
        simd::f32 const b = simd::template load<float>(master + (i + simd::lanes) * sizeof(float));
        store_raw(weight + i * sizeof(bfloat16), weights_of_split<false>(a, b));
        store_split<false>(low + i * sizeof(split_float32), a, b);
    }
    for (; i < n; ++i) {
        std::uint32_t bits;
        __builtin_memcpy(&bits, master + i * sizeof bits, sizeof bits);
        bfloat16 const upper = {static_cast<std::uint16_t>((bits + 0x8000u) >> 16)};
        split_float32 const lower = {static_cast<std::uint16_t>(bits)};
        __builtin_memcpy(weight + i * sizeof upper, &upper, sizeof upper);
        __builtin_memcpy(low + i * sizeof lower, &lower, sizeof lower);
    }
}
