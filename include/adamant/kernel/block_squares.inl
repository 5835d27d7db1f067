// SPDX-License-Identifier: Apache-2.0
// One block of the gradient's sum of squares, written once and included once per instruction set by kernel/targets.hpp,
// each time in a namespace of its own that holds a facade `simd`. Sixteen partial sums in double, as the oracle adds
// them.

template <class Grad, std::size_t Part, class Sums>
ADAMANT_SIMD void add_part(Sums& sums, simd::f32 g)
{
    if constexpr (!std::is_same_v<Grad, float16>) // which has no value that small
        g = simd::flush(g, float_min_normal_bits);
    simd::template add_squares<Part>(sums, g);
}
template <class Grad, std::size_t Part = 0, class Sums>
ADAMANT_SIMD void add_sixteen(Sums& sums, std::byte const* grad)
{
    if constexpr (simd::template adds_sixteen<Grad>) {
        sums.add_sixteen(grad);
    } else if constexpr (Part * simd::lanes < 16) {
        add_part<Grad, Part>(sums, simd::template load<Grad>(grad + Part * simd::lanes * sizeof(Grad)));
        add_sixteen<Grad, Part + 1>(sums, grad);
    }
}

// See block_squares_function. A block whose sum is not finite holds something that is not: squares of floats cannot
// overflow a double. Then the oracle counts, and sums the rest.
template <class Grad, class Simd = simd>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    typename simd::template partial_sums<Grad> sums;
    simd::clear(sums);
    std::size_t const rest = n % 16;
    std::byte const* const in_place = grad + (n - rest) * sizeof(Grad);
    alignas(64) std::byte padded[16 * sizeof(Grad)] = {}; // zeros change nothing
    if constexpr (!Simd::has_masks)
        copy_few(padded, in_place, rest * sizeof(Grad)); // early, because the load has to wait for it
    for (std::size_t i = 0; i < n - rest; i += 16)
        add_sixteen<Grad>(sums, grad + i * sizeof(Grad));
    if (rest != 0) {
        if constexpr (Simd::has_masks)
            add_part<Grad, 0>(sums, Simd::template load_first<Grad>(in_place, rest));
        else
            add_sixteen<Grad>(sums, padded);
    }
    alignas(64) double partial[16];
    simd::read(sums, partial);
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j)
            partial[j] += partial[j + width];
    if (!(partial[0] <= 0x1p1000))
        return oracle::block_squares<Grad>(grad, n);
    return {partial[0], 0};
}
