// SPDX-License-Identifier: Apache-2.0
// The scores of a gradient's columns, and its largest magnitude, as detail/numerics/column_score.hpp defines them.
// Written once and included once per instruction set by detail/kernels/targets.hpp.

// bfloat16 by evens and odds, which takes the fewest instructions; columns_in_order() puts sums right.
template <class Grad>
ADAMANT_SIMD void load_columns(std::byte const* at, simd::f32& a, simd::f32& b)
{
    if constexpr (std::is_same_v<Grad, bfloat16>)
        simd::load_evens_odds(at, a, b);
    else
        simd::template load_pair<Grad, false>(at, a, b);
}

template <class Grad>
ADAMANT_SIMD void look_for_larger(simd::u32& largest, std::byte const* at)
{
    simd::f32 a, b;
    load_columns<Grad>(at, a, b);
    largest = simd::max(largest, simd::max(simd::abs_bits(a), simd::abs_bits(b)));
}
// See largest_bits_function.
template <class Grad>
std::uint32_t largest_bits(std::byte const* grad, std::size_t n) noexcept
{
    constexpr std::size_t pair = 2 * simd::lanes;
    simd::u32 largest[2] = {simd::set(0u), simd::set(0u)};
    std::size_t i = 0;
    for (; n - i >= 2 * pair; i += 2 * pair) {
        look_for_larger<Grad>(largest[0], grad + i * sizeof(Grad));
        look_for_larger<Grad>(largest[1], grad + (i + pair) * sizeof(Grad));
    }
    for (; i < n; i += pair) {
        alignas(64) std::byte padded[pair * sizeof(Grad)] = {};
        copy_few(padded, grad + i * sizeof(Grad), (n - i < pair ? n - i : pair) * sizeof(Grad));
        look_for_larger<Grad>(largest[0], padded);
    }
    alignas(64) std::uint32_t lane[simd::lanes];
    simd::template store<float>(reinterpret_cast<std::byte*>(lane), simd::from_bits(simd::max(largest[0], largest[1])));
    std::uint32_t all = 0;
    for (std::uint32_t const each : lane)
        all = all < each ? each : all;
    return all;
}

template <bool Squares>
ADAMANT_SIMD simd::u32 score_bits(simd::f32 grad, simd::f32 scale)
{
    simd::f32 const zero = simd::set(column_score_zero);
    if constexpr (Squares) {
        simd::f32 const scaled = simd::mul(grad, scale);
        return simd::bits(simd::fma(scaled, scaled, zero));
    } else {
        return simd::bits(simd::fma(simd::from_bits(simd::abs_bits(grad)), scale, zero));
    }
}
// How memory is prefetched (see rows_ahead), and how many rows are read together.
inline constexpr bool asks_by_lines = simd::lanes == 16;
inline constexpr std::size_t score_rows = asks_by_lines ? 8 : 4;

// Adds two vectors of columns of a number of rows to their sums.
template <class Grad, bool Squares, std::size_t Rows>
ADAMANT_SIMD void add_scores(std::byte const* at, std::size_t row_bytes, simd::f32 scale, simd::u32& seen,
                             std::uint32_t* sums)
{
    std::byte* const first = reinterpret_cast<std::byte*>(sums);
    std::byte* const second = reinterpret_cast<std::byte*>(sums + simd::lanes);
    simd::u32 a = simd::bits(simd::template load<float>(first));
    simd::u32 b = simd::bits(simd::template load<float>(second));
    ADAMANT_UNROLL
    for (std::size_t row = 0; row < Rows; ++row) {
        simd::f32 x, y;
        load_columns<Grad>(at + row * row_bytes, x, y);
        simd::u32 const of_x = score_bits<Squares>(x, scale);
        simd::u32 const of_y = score_bits<Squares>(y, scale);
        a = simd::add(a, of_x);
        b = simd::add(b, of_y);
        seen = simd::or3(seen, of_x, of_y);
        // Stores for each line that is read, more of them for float32, though only the last ones count: without, loads
        // run so far ahead that Zen 4 has no buffers left for what is asked for, and drops it. A tenth to a quarter of
        // the time.
        constexpr std::size_t stores = asks_by_lines ? simd::lanes * sizeof(Grad) / 16 - 1 : 0;
        ADAMANT_UNROLL
        for (std::size_t again = 0; again < stores; ++again) {
            simd::template store<float>(first, simd::from_bits(a));
            simd::template store<float>(second, simd::from_bits(b));
            asm volatile("" ::: "memory");
        }
    }
    simd::template store<float>(first, simd::from_bits(a));
    simd::template store<float>(second, simd::from_bits(b));
}

// Asks for the memory of the rows after these while these are scored. Two ways, by what a CPU can:
// - Into the second cache, which every CPU with AVX-512 has instructions for: line after line, as they lie in memory, a
//   few thousand bytes ahead. Stores of sums wait for gradients, so that few of these would be under way otherwise.
// - Into the first, which has no room for so much: in each of these rows a little ahead, and at the end of a row in
//   the address where the next ones begin.
template <class Grad, std::size_t Rows>
struct rows_ahead {
    static constexpr std::size_t turn_bytes = 2 * simd::lanes * sizeof(Grad); // of each row
    static constexpr std::size_t turn_lines = Rows * turn_bytes / 64;
    std::byte const* grad;
    std::size_t row_bytes, width;
    std::byte const* row = nullptr; // that is asked for,
    std::byte const* next = nullptr;
    std::size_t share = 1, left = 1; // and in how many turns all of it is

    ADAMANT_SIMD rows_ahead(std::byte const* from, std::size_t pitch, std::size_t columns)
        : grad(from), row_bytes(pitch), width(columns * sizeof(Grad))
    {
        if constexpr (asks_by_lines) {
            std::size_t const block = Rows * (width == 0 ? 1 : width);
            row = next = from + (column_block_ahead_bytes + block - 1) / block * Rows * pitch;
            share = left = (width / turn_bytes + Rows - 1) / Rows;
        }
    }
    // Scores of the bytes from `at` on in each row are made now.
    ADAMANT_SIMD void ask(std::size_t at)
    {
        if constexpr (asks_by_lines) {
            ADAMANT_UNROLL
            for (std::size_t line = 0; line < turn_lines; ++line)
                __builtin_prefetch(next + line * 64, 0, 2);
            next += turn_lines * 64;
            if (--left == 0) {
                left = share;
                row += row_bytes;
                next = row;
            }
        } else {
            std::size_t const ahead = at + column_prefetch_bytes;
            std::byte const* const from = grad + (ahead < width ? ahead : Rows * row_bytes + ahead - width);
            if (turn_bytes < 64 && at % 64 != 0)
                return;
            ADAMANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r)
                __builtin_prefetch(from + r * row_bytes);
        }
    }
};

template <class Grad, bool Squares, std::size_t Rows>
ADAMANT_SIMD void add_rows(std::byte const* grad, std::size_t row_bytes, std::size_t columns, simd::f32 scale,
                           simd::u32& seen, std::uint32_t* sums)
{
    constexpr std::size_t turn = 2 * simd::lanes;
    rows_ahead<Grad, Rows> ahead(grad, row_bytes, columns);
    std::size_t c = 0;
    for (; columns - c >= turn; c += turn) {
        ahead.ask(c * sizeof(Grad));
        add_scores<Grad, Squares, Rows>(grad + c * sizeof(Grad), row_bytes, scale, seen, sums + c);
    }
    if (c < columns) {
        constexpr std::size_t bytes = turn * sizeof(Grad);
        alignas(64) std::byte padded[Rows * bytes] = {};
        ADAMANT_UNROLL
        for (std::size_t row = 0; row < Rows; ++row)
            copy_few(padded + row * bytes, grad + row * row_bytes + c * sizeof(Grad), (columns - c) * sizeof(Grad));
        add_scores<Grad, Squares, Rows>(padded, bytes, scale, seen, sums + c);
    }
}
// See column_scores_function.
template <class Grad, bool Squares>
bool add_column_scores(std::byte const* grad, std::size_t row_bytes, std::size_t rows, std::size_t columns, float scale,
                       std::uint32_t* sums) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    simd::f32 const scales = simd::set(scale);
    simd::u32 seen = simd::set(0u);
    std::size_t row = 0;
    for (; rows - row >= score_rows; row += score_rows)
        add_rows<Grad, Squares, score_rows>(grad + row * row_bytes, row_bytes, columns, scales, seen, sums);
    for (; row < rows; ++row)
        add_rows<Grad, Squares, 1>(grad + row * row_bytes, row_bytes, columns, scales, seen, sums);
    simd::u32 const zeros = simd::set(static_cast<std::uint32_t>(rows) * column_score_zero_bits);
    for (std::size_t c = 0; c < columns; c += 2 * simd::lanes) {
        std::byte* const at = reinterpret_cast<std::byte*>(sums + c);
        std::byte* const behind = at + simd::lanes * sizeof(float);
        simd::f32 a = simd::from_bits(simd::sub(simd::bits(simd::template load<float>(at)), zeros));
        simd::f32 b = simd::from_bits(simd::sub(simd::bits(simd::template load<float>(behind)), zeros));
        if constexpr (std::is_same_v<Grad, bfloat16>)
            simd::in_order(a, b);
        simd::template store<float>(at, a);
        simd::template store<float>(behind, b);
    }
    // Scores have the exponent of column_score_zero, 150; what is not finite has 255, and so the second bit of it.
    return !simd::any_sign(simd::template shift_left<2>(seen & simd::set(~column_score_zero_bits)));
}
