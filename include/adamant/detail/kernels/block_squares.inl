// SPDX-License-Identifier: Apache-2.0
// The sum of squares of one block of a gradient. detail/kernels/step_kernels.inl includes it once per instruction set,
// each time in a separate namespace with a facade `simd`.
//
// Computes float partial sums, as reference::block_squares() does. If the result is not safe, the reference
// implementation recomputes the block.

// Adds the squares of 64 elements to the 64 partial sums. bfloat16 is split into even and odd elements, which takes the
// fewest instructions.
template <class Grad>
ADAMANT_SIMD void add_squares(simd::f32 (&sums)[norm_lanes / simd::lanes], std::byte const* grad)
{
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < norm_lanes / simd::lanes; k += 2) {
        std::byte const* const address = grad + k * simd::lanes * sizeof(Grad);
        simd::f32 a, b;
        if constexpr (std::is_same_v<Grad, bfloat16>)
            simd::load_evens_odds(address, a, b);
        else
            simd::template load_pair<Grad, false>(address, a, b);
        sums[k] = simd::fma(a, a, sums[k]);
        sums[k + 1] = simd::fma(b, b, sums[k + 1]);
    }
}
// Whether all elements are zeros, of either sign.
template <class Grad>
[[nodiscard]] bool are_zeros(std::byte const* grad, std::size_t n) noexcept
{
    using bits = std::conditional_t<sizeof(Grad) == 2, std::uint16_t, std::uint32_t>;
    bits any[norm_lanes] = {};
    std::size_t i = 0;
    for (; n - i >= norm_lanes; i += norm_lanes)
        for (std::size_t j = 0; j < norm_lanes; ++j)
            any[j] = static_cast<bits>(any[j] | load_unaligned<bits>(grad + (i + j) * sizeof(bits)));
    for (; i < n; ++i)
        any[0] = static_cast<bits>(any[0] | load_unaligned<bits>(grad + i * sizeof(bits)));
    for (std::size_t j = 1; j < norm_lanes; ++j)
        any[0] = static_cast<bits>(any[0] | any[j]);
    return static_cast<bits>(any[0] << 1) == 0;
}

// See block_squares_function. Prefetches if the additions leave a core room for too few loads to keep memory busy:
//   one load per line        into L2, which takes 5 to 8% less time than into L1 on Zen 4
//   several loads, 16 bits   into L1, because the latency of L2 would show: a third more time on Zen 4. Prefetching
//                            into both, at two distances, takes 9% longer on Zen 3
//   several loads, 32 bits   not at all: the core has room for enough loads, and prefetching takes 20% longer on Zen 3
template <class Grad>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    detail::vzeroupper_scope const at_end;
    constexpr std::size_t vectors = norm_lanes / simd::lanes;
    constexpr std::size_t chunk_bytes = norm_lanes * sizeof(Grad);
    float_mode_scope const mode(subnormals::flushed);
    simd::f32 sums[vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < vectors; ++k)
        sums[k] = simd::set(norm_lane_start);
    std::size_t const chunks = n / norm_lanes;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        std::byte const* const address = grad + chunk * chunk_bytes;
        ADAMANT_UNROLL
        for (std::size_t line = 0; line < chunk_bytes; line += 64) {
            if constexpr (simd::lanes * sizeof(float) == 64)
                __builtin_prefetch(address + default_prefetch_bytes + line, 0, 2);
            else if constexpr (sizeof(Grad) == 2)
                __builtin_prefetch(address + default_prefetch_bytes + line);
        }
        add_squares<Grad>(sums, address);
    }
    if (std::size_t const rest = n % norm_lanes; rest != 0) {
        alignas(64) std::byte padded[chunk_bytes] = {}; // zeros change nothing
        copy_few(padded, grad + chunks * chunk_bytes, rest * sizeof(Grad));
        add_squares<Grad>(sums, padded);
    }
    alignas(64) float lane[norm_lanes];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < vectors; k += 2) {
        if constexpr (std::is_same_v<Grad, bfloat16>)
            simd::in_order(sums[k], sums[k + 1]);
        simd::template store<float>(reinterpret_cast<std::byte*>(lane + k * simd::lanes), sums[k]);
        simd::template store<float>(reinterpret_cast<std::byte*>(lane + (k + 1) * simd::lanes), sums[k + 1]);
    }
    double const sum = reference::add_lanes(lane);
    if (reference::is_safe(sum)) [[likely]]
        return {sum, 0};
    if (sum == 0 && are_zeros<Grad>(grad, n))
        return {};
    float_mode_scope const as_defined(subnormals::kept);
    return reference::block_squares_in_double<Grad>(grad, n);
}
