// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/detail/numerics/squares_total.hpp>.
#pragma once

#include <bit>
#include <cmath>

#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/squares_total.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL void squares_total::add(grad_squares const& squares) noexcept
{
    words_[sum_words] += static_cast<std::int64_t>(squares.nonfinite);
    if (squares.sum == 0)
        return;
    auto const bits = std::bit_cast<std::uint64_t>(squares.sum);
    std::uint64_t const significand = (bits & 0xfffffffffffffu) | std::uint64_t{1} << 52;
    // The sum is significand * 2^(exponent - 1075).
    auto const exponent = static_cast<unsigned>(bits >> 52);
    unsigned const shift = exponent - (1075 - 320);
    std::size_t word = shift / 32;
    // The shifted significand has up to 84 bits. Each part may exceed 32 bits.
    std::uint64_t const part = (significand & 0xffffffffu) << shift % 32;
    std::uint64_t const upper_part = (significand >> 32) << shift % 32;
    std::uint64_t rest = part;
    for (std::uint64_t upper = upper_part; word < sum_words && (rest | upper) != 0; ++word, upper = 0) {
        std::uint64_t const sum = static_cast<std::uint64_t>(words_[word]) + (rest & 0xffffffffu);
        words_[word] = static_cast<std::int64_t>(sum & 0xffffffffu);
        rest = (rest >> 32) + (sum >> 32) + upper;
    }
}

ADAMANT_DECL void squares_total::add(squares_total const& other) noexcept
{
    for (std::size_t i = 0; i < word_count; ++i)
        words_[i] += other.words_[i];
    carry();
}

ADAMANT_DECL bool squares_total::set_words(word_array const& words) noexcept
{
    squares_total total;
    for (std::size_t i = 0; i < word_count; ++i) {
        if (words[i] < 0)
            return false;
        total.words_[i] = words[i];
    }
    total.carry();
    if (total.words_[sum_words - 1] < 0 || total.words_[sum_words - 1] >> 32 != 0)
        return false;
    *this = total;
    return true;
}

ADAMANT_DECL void squares_total::carry() noexcept
{
    for (std::size_t i = 0; i + 1 < sum_words; ++i) {
        // Unsigned arithmetic, because words from an untrusted source could overflow signed integers.
        words_[i + 1] = static_cast<std::int64_t>(static_cast<std::uint64_t>(words_[i + 1]) +
                                                  (static_cast<std::uint64_t>(words_[i]) >> 32));
        words_[i] &= 0xffffffff;
    }
}

ADAMANT_DECL grad_squares squares_total::rounded() const noexcept
{
    std::size_t top = sum_words;
    while (top > 0 && words_[top - 1] == 0)
        --top;
    auto const word = [&](std::size_t below_top) {
        return top > below_top ? static_cast<std::uint64_t>(words_[top - 1 - below_top]) : std::uint64_t{0};
    };
    // The 64 leading bits of the sum. The highest word has at least one bit, so they come from at most three words.
    // Rounding needs only one fact about the bits below them: whether any is set.
    int const zeros = top == 0 ? 0 : std::countl_zero(word(0)) - 32;
    std::uint64_t const high = word(0) << 32 | word(1);
    std::uint64_t const low = word(2) << 32 | word(3);
    std::uint64_t leading = zeros == 0 ? high : high << zeros | low >> (64 - zeros);
    bool below = (low << zeros) != 0;
    for (std::size_t i = 4; i < top && !below; ++i)
        below = word(i) != 0;
    leading |= below ? 1u : 0u;
    int const exponent = 32 * (static_cast<int>(top) - 2) - 320 - zeros;
    grad_squares result{0, nonfinite()};
    detail::rounded_to_nearest([&] { result.sum = std::ldexp(static_cast<double>(leading), exponent); });
    return result;
}

ADAMANT_DECL bool squares_total::covers(squares_total const& other) const noexcept
{
    std::size_t i = sum_words - 1;
    while (i > 0 && words_[i] == other.words_[i])
        --i;
    return words_[i] >= other.words_[i] && words_[sum_words] >= other.words_[sum_words];
}

ADAMANT_END_NAMESPACE
