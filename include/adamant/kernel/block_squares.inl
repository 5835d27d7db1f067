// SPDX-License-Identifier: Apache-2.0
// One block of the gradient's sum of squares, written once and included once per instruction set by kernel/targets.hpp,
// each time in a namespace of its own that holds a facade `simd`. Sixteen partial sums in double, as the oracle adds
// them.

template <class Grad, std::size_t Part = 0, class Sums>
ADAMANT_SIMD void add_sixteen(Sums& sums, std::byte const* grad)
{
    if constexpr (simd::template adds_sixteen<Grad>) {
        sums.add_sixteen(grad);
    } else if constexpr (Part * simd::lanes < 16) {
        simd::f32 g = simd::load<Grad>(grad + Part * simd::lanes * sizeof(Grad));
        if constexpr (!std::is_same_v<Grad, float16>) // which has no value that small
            g = simd::flush(g, float_min_normal_bits);
        simd::template add_squares<Part>(sums, g);
        add_sixteen<Grad, Part + 1>(sums, grad);
    }
}

// See block_squares_function. A block whose sum is not finite holds something that is not: squares of floats cannot
// overflow a double. Then the oracle counts, and sums the rest.
template <class Grad>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    typename simd::template partial_sums<Grad> sums;
    simd::clear(sums);
    std::size_t const whole_end = n - n % 16;
    alignas(64) std::byte padded[16 * sizeof(Grad)] = {}; // copied first, for a load of it waits
    copy_few(padded, grad + whole_end * sizeof(Grad), (n - whole_end) * sizeof(Grad));
    for (std::size_t i = 0; i < whole_end; i += 16)
        add_sixteen<Grad>(sums, grad + i * sizeof(Grad));
    if (whole_end < n)
        add_sixteen<Grad>(sums, padded); // adding zeros changes nothing
    alignas(64) double partial[16];
    simd::read(sums, partial);
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j)
            partial[j] += partial[j + width];
    if (!(partial[0] <= 0x1p1000))
        return oracle::block_squares<Grad>(grad, n);
    return {partial[0], 0};
}
