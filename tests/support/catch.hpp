// SPDX-License-Identifier: Apache-2.0
// Catch2, version 2 or 3, and what the tests share.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include <adamant/dtype.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/isa.hpp>
#include <adamant/detail/numerics/quantized8.hpp>

// Catch2's macros repeat the expression three times and contain all of an assertion's code. These repeat nothing and
// call a function: tests compile in nine tenths of the time. Failures are reported as before; an exception in the
// expression ends the test case, which reports it.
namespace test {

inline void assert_that(char const* macro, Catch::SourceLineInfo const& line, char const* text,
                        Catch::ResultDisposition::Flags flags, Catch::ITransientExpression const& expression)
{
    Catch::AssertionHandler handler(macro, line, text, flags);
    handler.handleExpr(expression);
    handler.complete();
}
template <class T>
void assert_that(char const* macro, Catch::SourceLineInfo const& line, char const* text,
                 Catch::ResultDisposition::Flags flags, Catch::ExprLhs<T> const& value)
{
    assert_that(macro, line, text, flags, value.makeUnaryExpr());
}

} // namespace test

#pragma GCC diagnostic ignored "-Wparentheses" // of a decomposed comparison
#undef CHECK
#undef CHECK_FALSE
#undef REQUIRE
#undef REQUIRE_FALSE
#define ADAMANT_ASSERT_THAT(macro, flags, ...)                                                                         \
    test::assert_that(macro, {__FILE__, __LINE__}, #__VA_ARGS__, flags, Catch::Decomposer() <= __VA_ARGS__)
#define ADAMANT_CONTINUE Catch::ResultDisposition::ContinueOnFailure
#define ADAMANT_STOP Catch::ResultDisposition::Normal
#define ADAMANT_IS_FALSE Catch::ResultDisposition::FalseTest
#define CHECK(...) ADAMANT_ASSERT_THAT("CHECK", ADAMANT_CONTINUE, __VA_ARGS__)
#define CHECK_FALSE(...) ADAMANT_ASSERT_THAT("CHECK_FALSE", ADAMANT_CONTINUE | ADAMANT_IS_FALSE, __VA_ARGS__)
#define REQUIRE(...) ADAMANT_ASSERT_THAT("REQUIRE", ADAMANT_STOP, __VA_ARGS__)
#define REQUIRE_FALSE(...) ADAMANT_ASSERT_THAT("REQUIRE_FALSE", ADAMANT_STOP | ADAMANT_IS_FALSE, __VA_ARGS__)

namespace test {

using sizes = std::initializer_list<std::size_t>;

// SplitMix64: the same numbers on every machine.
class random_bits {
public:
    explicit random_bits(std::uint64_t seed) : state_(seed) {}
    std::uint64_t operator()()
    {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t n) { return static_cast<std::size_t>((*this)() % n); }

private:
    std::uint64_t state_;
};

inline std::uint32_t bits(float x)
{
    return std::bit_cast<std::uint32_t>(x);
}
inline float from_bits(std::uint32_t x)
{
    return std::bit_cast<float>(x);
}

// Random sign and mantissa, exponent from 2^low to 2^high.
inline float with_exponent(std::uint64_t random, int low, int high)
{
    auto const span = static_cast<std::uint64_t>(high - low + 1);
    auto const exponent = static_cast<std::uint32_t>(127 + low + static_cast<int>((random >> 32) % span));
    return from_bits((static_cast<std::uint32_t>(random) & 0x807fffffu) | exponent << 23);
}

// Such as make extreme coefficients.
inline std::vector<adamant::hyperparameters> odd_hyperparameters()
{
    return {
        {.lr = 0},
        {.lr = 1e-30},
        {.lr = 1e6},
        {.beta1 = 0, .beta2 = 0},
        {.beta1 = 1 - 0x1p-24, .beta2 = 1 - 0x1.8p-25},
        {.beta1 = 0x1p-20, .beta2 = 0.25},
        {.eps = 0},
        {.eps = 1e-37},
        {.eps = 1e30},
        {.lr = 0.5, .weight_decay = 2, .mode = adamant::decay_mode::decoupled}, // decay 0
        {.lr = 0.5, .weight_decay = 20, .mode = adamant::decay_mode::decoupled},
        {.lr = 1e-3, .weight_decay = 1e30, .mode = adamant::decay_mode::l2},
        {.lr = 1e-3, .weight_decay = 1e-30, .mode = adamant::decay_mode::l2},
    };
}

// The kinds of values a kernel must get right. Which one decides what share of them is plain.
enum class values {
    ordinary, // what training sees
    extreme,  // any exponent
    any_bits, // any 32 bits: infinities, NaN payloads, subnormals
    boundary, // around 2^-126, before and after rounding, and around the bounds of the kernels' guard
    special,  // signed zeros, infinities, NaNs, ties of the 16-bit formats, mixed with ordinary ones
};
inline constexpr values all_values[] = {values::ordinary, values::extreme, values::any_bits, values::boundary,
                                        values::special};

inline float value_of(values kind, random_bits& random, int low, int high)
{
    std::uint64_t const r = random();
    switch (kind) {
    case values::ordinary: break;
    case values::extreme: return with_exponent(r, -126, 127);
    case values::any_bits: return from_bits(static_cast<std::uint32_t>(r >> 32));
    case values::boundary: {
        static constexpr std::uint32_t centres[] = {0x00800000u,
                                                    0x00800000u,
                                                    0x00808000u,
                                                    0x01000000u,
                                                    0x00400000u,
                                                    std::bit_cast<std::uint32_t>(0x1p-124f),
                                                    std::bit_cast<std::uint32_t>(0x1p-121f),
                                                    std::bit_cast<std::uint32_t>(0x1p-63f),
                                                    std::bit_cast<std::uint32_t>(0x1p-40f),
                                                    std::bit_cast<std::uint32_t>(2.0f),
                                                    std::bit_cast<std::uint32_t>(0x1p8f),
                                                    std::bit_cast<std::uint32_t>(0x1p16f),
                                                    std::bit_cast<std::uint32_t>(0x1p64f),
                                                    0x7f7fffffu};
        std::uint32_t const near = centres[r % std::size(centres)] + static_cast<std::uint32_t>((r >> 8) % 5) - 2;
        return from_bits(near | (static_cast<std::uint32_t>(r >> 32) & 0x80000000u));
    }
    case values::special: {
        static constexpr std::uint32_t some[] = {0u,          0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                                                 0xffc12345u, 0x7f800001u, 1u,          0x807fffffu, 0x3f808000u,
                                                 0x3f818000u, 0x3f801000u, 0x3f803000u, 0x477fe000u, 0x477ff000u,
                                                 0x33000000u, 0x33000001u, 0x387fc000u, 0x38800000u, 0x7f7f8000u};
        if (r % 4 == 0)
            return from_bits(some[(r >> 8) % std::size(some)]);
        break;
    }
    }
    return with_exponent(r, low, high);
}

// An array of elements of a run-time type, beginning `offset_bytes` past a multiple of 64, with guard bytes around it.
class array {
public:
    array(adamant::dtype type, std::size_t n, std::size_t offset_bytes = 0)
        : type_(type), n_(type == adamant::dtype::none ? 0 : n),
          bytes_(64 + offset_bytes + array_bytes(type, n_) + 64, std::byte{0xa5})
    {
        auto const address = reinterpret_cast<std::uintptr_t>(bytes_.data());
        begin_ = (64 - address % 64) % 64 + offset_bytes;
    }
    array(array const& other) : array(other, 0) {}
    array& operator=(array const&) = delete;
    // A copy that begins at another offset.
    array(array const& other, std::size_t offset_bytes) : array(other.type_, other.n_, offset_bytes)
    {
        if (n_ != 0)
            std::memcpy(data(), other.data(), bytes());
    }

    [[nodiscard]] std::byte* data() { return type_ == adamant::dtype::none ? nullptr : bytes_.data() + begin_; }
    [[nodiscard]] std::byte const* data() const { return const_cast<array*>(this)->data(); }
    [[nodiscard]] std::size_t size() const { return n_; }
    [[nodiscard]] std::size_t bytes() const { return array_bytes(type_, n_); }

    // Of a group of 8 bits: x is its scale where it is the group's first, and its code has some of x's bits.
    void set(std::size_t i, float x)
    {
        if (type_ == adamant::dtype::quantized8) {
            std::byte* const group = group_of(i);
            if (i % adamant::quantized_group_elems == 0)
                adamant::store_unaligned(group + adamant::quantized_group_elems, x);
            group[i % adamant::quantized_group_elems] = static_cast<std::byte>(bits(x) >> 10);
            return;
        }
        std::byte* const at = data() + i * size_bytes(type_);
        if (type_ == adamant::dtype::float32)
            adamant::store_unaligned(at, x);
        else if (type_ == adamant::dtype::bfloat16)
            adamant::store_unaligned(at, adamant::narrow<adamant::bfloat16>(x));
        else if (type_ == adamant::dtype::split_float32) // the lower half: with any upper one it is some master
            adamant::store_unaligned(at, adamant::split_master(x).low);
        else
            adamant::store_unaligned(at, adamant::narrow<adamant::float16>(x));
    }
    [[nodiscard]] float get(std::size_t i) const
    {
        if (type_ == adamant::dtype::quantized8) { // as a first moment
            std::byte const* const group = group_of(i);
            return adamant::decoded_exp_avg(static_cast<std::uint8_t>(group[i % adamant::quantized_group_elems]),
                                            adamant::load_unaligned<float>(group + adamant::quantized_group_elems));
        }
        std::byte const* const at = data() + i * size_bytes(type_);
        if (type_ == adamant::dtype::float32)
            return adamant::load_unaligned<float>(at);
        if (type_ == adamant::dtype::bfloat16)
            return adamant::widen(adamant::load_unaligned<adamant::bfloat16>(at));
        return adamant::widen(adamant::load_unaligned<adamant::float16>(at));
    }
    // Any bits of the element's own type.
    void set_bits(std::size_t i, std::uint64_t random)
    {
        if (type_ == adamant::dtype::quantized8)
            return set(i, from_bits(static_cast<std::uint32_t>(random)));
        std::memcpy(data() + i * size_bytes(type_), &random, size_bytes(type_));
    }
    // Not of 8 bits.
    [[nodiscard]] std::uint32_t element_bits(std::size_t i) const
    {
        std::uint32_t result = 0;
        std::memcpy(&result, data() + i * size_bytes(type_), size_bytes(type_));
        return result;
    }

    // The first element whose bits differ, as text; empty where there is none. Bytes around the arrays count too.
    [[nodiscard]] std::string difference(array const& expected) const
    {
        bool const differs = n_ != 0 && std::memcmp(data(), expected.data(), bytes()) != 0;
        for (std::size_t b = 0; differs && type_ == adamant::dtype::quantized8 && b < bytes(); ++b)
            if (data()[b] != expected.data()[b])
                return "byte " + std::to_string(b % sizeof(adamant::quantized8)) + " of group " +
                       std::to_string(b / sizeof(adamant::quantized8)) + " is " +
                       std::to_string(static_cast<int>(data()[b])) + ", expected " +
                       std::to_string(static_cast<int>(expected.data()[b])) + " (" + std::to_string(n_) + " elements)";
        for (std::size_t i = 0; differs && type_ != adamant::dtype::quantized8 && i < n_; ++i)
            if (element_bits(i) != expected.element_bits(i)) {
                char text[100];
                std::snprintf(text, sizeof text, "element %zu of %zu is %08x, expected %08x", i, n_, element_bits(i),
                              expected.element_bits(i));
                return text;
            }
        auto const untouched = [](std::byte each) { return each == std::byte{0xa5}; };
        auto const begin = bytes_.begin() + static_cast<std::ptrdiff_t>(begin_);
        if (!std::all_of(bytes_.begin(), begin, untouched) ||
            !std::all_of(begin + static_cast<std::ptrdiff_t>(bytes()), bytes_.end(), untouched))
            return "a byte outside the array was written";
        return {};
    }

private:
    [[nodiscard]] std::byte* group_of(std::size_t i) const
    {
        return const_cast<array*>(this)->data() + i / adamant::quantized_group_elems * sizeof(adamant::quantized8);
    }

    adamant::dtype type_;
    std::size_t n_;
    std::vector<std::byte> bytes_;
    std::size_t begin_ = 0;
};

// The tier this run is for: ADAMANT_ISA, or the best.
inline adamant::isa tier()
{
    return adamant::resolve_isa(adamant::isa::automatic);
}

// The tiers whose kernels are compared with the scalar reference: the one of ADAMANT_ISA, or all that this CPU has.
inline std::vector<adamant::isa> const& tiers()
{
    static std::vector<adamant::isa> const found = [] {
        char const* const variable = std::getenv("ADAMANT_ISA");
        if (variable != nullptr && *variable != '\0')
            return std::vector{tier()};
        std::vector<adamant::isa> all;
        for (adamant::isa const each : adamant::all_isas)
            if (each != adamant::isa::scalar && adamant::is_available(each))
                all.push_back(each);
        return all;
    }();
    return found;
}

// ADAMANT_TEST_SCALE: how many times as many random runs there are as usual. At least 1, whatever it is set to: a test
// without runs would pass.
inline std::uint64_t scale()
{
    static std::uint64_t const found = [] {
        char const* const variable = std::getenv("ADAMANT_TEST_SCALE");
        return variable == nullptr ? std::uint64_t{1}
                                   : std::max<std::uint64_t>(1, std::strtoull(variable, nullptr, 10));
    }();
    return found;
}
inline std::uint64_t repeats(std::uint64_t runs)
{
    return runs * scale();
}
// Tests of all values of a type try each 17th, unless they are scaled.
inline std::uint32_t sampling()
{
    return scale() > 1 ? 1 : 17;
}

} // namespace test
