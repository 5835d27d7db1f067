// SPDX-License-Identifier: Apache-2.0
// The scores of a gradient's columns, as detail/numerics/column_score.hpp defines them, and the gradient's largest
// magnitude. detail/kernels/column_kernels.hpp includes it once per instruction set.

// Loads two vectors. bfloat16 is split into even and odd elements, which takes the fewest instructions;
// add_column_scores() restores the order of the sums at its end.
template <class Grad>
ADAMANT_SIMD void load_columns(std::byte const* address, simd::f32& a, simd::f32& b)
{
    if constexpr (std::is_same_v<Grad, bfloat16>)
        simd::load_evens_odds(address, a, b);
    else
        simd::template load_pair<Grad, false>(address, a, b);
}

template <class Grad>
ADAMANT_SIMD void update_largest(simd::u32& largest, std::byte const* address)
{
    simd::f32 a, b;
    load_columns<Grad>(address, a, b);
    largest = simd::max(largest, simd::max(simd::abs_bits(a), simd::abs_bits(b)));
}
// See largest_bits_function.
template <class Grad>
std::uint32_t largest_bits(std::byte const* grad, std::size_t n) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed); // float16 may be widened in another format (AArch64's AHP)
    constexpr std::size_t pair = 2 * simd::lanes;
    simd::u32 largest[2] = {simd::set(0u), simd::set(0u)};
    std::size_t i = 0;
    for (; n - i >= 2 * pair; i += 2 * pair) {
        update_largest<Grad>(largest[0], grad + i * sizeof(Grad));
        update_largest<Grad>(largest[1], grad + (i + pair) * sizeof(Grad));
    }
    for (; i < n; i += pair) {
        alignas(64) std::byte padded[pair * sizeof(Grad)] = {};
        copy_few(padded, grad + i * sizeof(Grad), (n - i < pair ? n - i : pair) * sizeof(Grad));
        update_largest<Grad>(largest[0], padded);
    }
    alignas(64) std::uint32_t lanes[simd::lanes];
    simd::template store<float>(reinterpret_cast<std::byte*>(lanes),
                                simd::from_bits(simd::max(largest[0], largest[1])));
    std::uint32_t result = 0;
    for (std::uint32_t const lane : lanes)
        result = result < lane ? lane : result;
    return result;
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
inline constexpr bool asks_by_lines = simd::lanes == 16;         // how to prefetch, see rows_ahead
inline constexpr std::size_t score_rows = asks_by_lines ? 8 : 4; // rows that are read together

// Adds the scores of two vectors of columns over `Rows` rows to their sums.
template <class Grad, bool Squares, std::size_t Rows>
ADAMANT_SIMD void add_scores(std::byte const* address, std::size_t row_bytes, simd::f32 scale, simd::u32& seen,
                             std::uint32_t* sums)
{
    std::byte* const first = reinterpret_cast<std::byte*>(sums);
    std::byte* const second = reinterpret_cast<std::byte*>(sums + simd::lanes);
    simd::u32 a = simd::bits(simd::template load<float>(first));
    simd::u32 b = simd::bits(simd::template load<float>(second));
    ADAMANT_UNROLL
    for (std::size_t row = 0; row < Rows; ++row) {
        simd::f32 x, y;
        load_columns<Grad>(address + row * row_bytes, x, y);
        simd::u32 const x_score = score_bits<Squares>(x, scale);
        simd::u32 const y_score = score_bits<Squares>(y, scale);
        a = simd::add(a, x_score);
        b = simd::add(b, y_score);
        seen = simd::or3(seen, x_score, y_score);
        // Stores the sums for each line that is read, more often for float32, although only the last stores matter.
        // Without them loads run so far ahead that Zen 4 has no buffers left for prefetches and drops these, which
        // costs a tenth to a quarter of the time.
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

// Prefetches the rows after the current ones while these are scored. There are two ways:
// - With AVX-512, into L2, which every such CPU can prefetch into: line by line in memory order, several thousand bytes
//   ahead. The stores of sums wait for gradients, so few loads of gradients would be under way otherwise.
// - Otherwise into L1, which has no room for so much: a short distance ahead in each of the current rows, and at the
//   end of these rows at the start of the next ones.
template <class Grad, std::size_t Rows>
struct rows_ahead {
    static constexpr std::size_t chunk_bytes = 2 * simd::lanes * sizeof(Grad); // of each row, per call of ask()
    static constexpr std::size_t chunk_lines = Rows * chunk_bytes / 64;
    std::byte const* grad;
    std::size_t row_bytes, width;
    std::byte const* row = nullptr;  // the row that is being prefetched
    std::byte const* next = nullptr; // the next line of it
    std::size_t share = 1, left = 1; // calls of ask() for a whole row, and for the rest of this one

    ADAMANT_SIMD rows_ahead(std::byte const* start, std::size_t pitch, std::size_t columns)
        : grad(start), row_bytes(pitch), width(columns * sizeof(Grad))
    {
        if constexpr (asks_by_lines) {
            std::size_t const block = Rows * (width == 0 ? 1 : width);
            row = next = start + (column_block_ahead_bytes + block - 1) / block * Rows * pitch;
            share = left = (width / chunk_bytes + Rows - 1) / Rows;
        }
    }
    // Call before scoring the bytes from `offset` on in each row.
    ADAMANT_SIMD void ask(std::size_t offset)
    {
        if constexpr (asks_by_lines) {
            ADAMANT_UNROLL
            for (std::size_t line = 0; line < chunk_lines; ++line)
                __builtin_prefetch(next + line * 64, 0, 2);
            next += chunk_lines * 64;
            if (--left == 0) {
                left = share;
                row += row_bytes;
                next = row;
            }
        } else {
            std::size_t const ahead = offset + column_prefetch_bytes;
            std::byte const* const start = grad + (ahead < width ? ahead : Rows * row_bytes + ahead - width);
            if (chunk_bytes < 64 && offset % 64 != 0)
                return;
            ADAMANT_UNROLL
            for (std::size_t r = 0; r < Rows; ++r)
                __builtin_prefetch(start + r * row_bytes);
        }
    }
};

template <class Grad, bool Squares, std::size_t Rows>
ADAMANT_SIMD void add_rows(std::byte const* grad, std::size_t row_bytes, std::size_t columns, simd::f32 scale,
                           simd::u32& seen, std::uint32_t* sums)
{
    constexpr std::size_t chunk = 2 * simd::lanes;
    rows_ahead<Grad, Rows> ahead(grad, row_bytes, columns);
    std::size_t c = 0;
    for (; columns - c >= chunk; c += chunk) {
        ahead.ask(c * sizeof(Grad));
        add_scores<Grad, Squares, Rows>(grad + c * sizeof(Grad), row_bytes, scale, seen, sums + c);
    }
    if (c < columns) {
        constexpr std::size_t bytes = chunk * sizeof(Grad);
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
    detail::vzeroupper_scope const at_end;
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
        std::byte* const address = reinterpret_cast<std::byte*>(sums + c);
        std::byte* const second = address + simd::lanes * sizeof(float);
        simd::f32 a = simd::from_bits(simd::sub(simd::bits(simd::template load<float>(address)), zeros));
        simd::f32 b = simd::from_bits(simd::sub(simd::bits(simd::template load<float>(second)), zeros));
        if constexpr (std::is_same_v<Grad, bfloat16>)
            simd::in_order(a, b);
        simd::template store<float>(address, a);
        simd::template store<float>(second, b);
    }
    // Scores have the biased exponent of column_score_zero, 150; infinities and NaNs have 255. So bit 29 is set only in
    // scores of elements that are not finite.
    return !simd::any_sign(simd::template shift_left<2>(seen & simd::set(~column_score_zero_bits)));
}
