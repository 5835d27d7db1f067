// SPDX-License-Identifier: Apache-2.0
// What happens to a gradient before a step: added up over micro-steps, and made finite or small enough. Over pieces
// that stay in cache. Written once and included once per instruction set by kernel/targets.hpp, after
// kernel/fused_step.inl.

// One vector of the sum of two gradients as oracle::added; Sum is void where there is nothing to be added yet.
template <class Grad, class Sum, class Out>
ADAMANT_SIMD void add_vector(std::byte const* grad, std::byte const* sum, std::byte* out)
{
    simd::f32 total = simd::flush(simd::load<Grad>(grad), float_min_normal_bits);
    if constexpr (!std::is_void_v<Sum>)
        total = simd::flush(simd::fma(simd::set(1.0f), simd::flush(simd::load<Sum>(sum), float_min_normal_bits), total),
                            float_min_normal_bits);
    store_carefully<Out>(out, total);
}

// See add_gradients_function.
template <class Grad, class Sum, class Out>
void add_gradients(std::byte const* grad, std::byte const* sum, std::size_t n, std::byte* out) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    constexpr std::size_t sum_bytes = size_bytes(dtype_of<Sum>);
    std::size_t i = 0;
    for (; n - i >= simd::lanes; i += simd::lanes)
        add_vector<Grad, Sum, Out>(grad + i * sizeof(Grad), sum + i * sum_bytes, out + i * sizeof(Out));
    if (i < n) {
        alignas(64) std::byte padded[3][simd::lanes * sizeof(float)] = {};
        __builtin_memcpy(padded[0], grad + i * sizeof(Grad), (n - i) * sizeof(Grad));
        if constexpr (sum_bytes != 0)
            __builtin_memcpy(padded[1], sum + i * sum_bytes, (n - i) * sum_bytes);
        add_vector<Grad, Sum, Out>(padded[0], padded[1], padded[2]);
        __builtin_memcpy(out + i * sizeof(Out), padded[2], (n - i) * sizeof(Out));
    }
}

// See tame_gradient_function.
inline void tame_gradient(std::byte* grad, std::size_t n, bool zero_nonfinite, float scale, float bound) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    simd::u32 const bound_bits = simd::abs_bits(simd::set(bound));
    for (std::size_t i = 0; i < n; i += simd::lanes) {
        alignas(64) std::byte padded[simd::lanes * sizeof(float)] = {};
        std::size_t const count = n - i < simd::lanes ? n - i : simd::lanes;
        std::byte* at = grad + i * sizeof(float);
        if (count < simd::lanes) {
            __builtin_memcpy(padded, at, count * sizeof(float));
            at = padded;
        }
        simd::f32 g = simd::load<float>(at);
        if (zero_nonfinite) // all ones below infinity, else zeros
            g = simd::from_bits(simd::bits(g) & simd::finite_mask(g));
        g = simd::flush(simd::mul(simd::flush(g, float_min_normal_bits), simd::set(scale)), float_min_normal_bits);
        simd::u32 const sign = simd::bits(g) & simd::set(float_sign_bit);
        g = simd::canonical(simd::from_bits(simd::min(simd::abs_bits(g), bound_bits) | sign), g);
        simd::store<float>(at, g);
        if (count < simd::lanes)
            __builtin_memcpy(grad + i * sizeof(float), padded, count * sizeof(float));
    }
}

// See round_weights_function.
template <class WeightOut>
void round_weights(std::byte const* param, std::size_t n, std::byte* out) noexcept
{
    add_gradients<float, void, WeightOut>(param, nullptr, n, out);
}
