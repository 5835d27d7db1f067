// SPDX-License-Identifier: Apache-2.0
// The loops of limit.hpp, for one width of register.

typedef std::uint64_t reg __attribute__((vector_size(ADAMANT_BENCH_VECTOR_BYTES), may_alias));
typedef std::uint64_t unaligned_reg
    __attribute__((vector_size(ADAMANT_BENCH_VECTOR_BYTES), may_alias, aligned(alignof(std::uint64_t))));
typedef float float_reg __attribute__((vector_size(ADAMANT_BENCH_VECTOR_BYTES), may_alias));

template <bool Stream>
ADAMANT_SIMD void put(std::byte* address, reg value)
{
    if constexpr (Stream)
        ADAMANT_BENCH_STREAM(reinterpret_cast<reg*>(address), value);
    else
        *reinterpret_cast<unaligned_reg*>(address) = value;
}

ADAMANT_SIMD reg get(std::byte const* address)
{
    reg value = *reinterpret_cast<unaligned_reg const*>(address);
    asm volatile("" : ADAMANT_BENCH_REGISTER(value)); // read, and perhaps changed, as far as the compiler knows
    return value;
}

// Bytes of whole lines of one array.
template <std::size_t Bytes>
ADAMANT_SIMD void prefetch(std::byte const* at, std::size_t prefetch_bytes)
{
    if (prefetch_bytes != 0) {
        ADAMANT_UNROLL
        for (std::size_t line = 0; line < Bytes; line += 64)
            __builtin_prefetch(at + line + prefetch_bytes);
    }
}
template <std::size_t Bytes>
ADAMANT_SIMD void read_lines(std::byte const* at, std::size_t prefetch_bytes)
{
    prefetch<Bytes>(at, prefetch_bytes);
    ADAMANT_UNROLL
    for (std::size_t offset = 0; offset < Bytes; offset += sizeof(reg))
        get(at + offset);
}
// Whole lines of one array, on their way from memory and back.
template <std::size_t Bytes, bool Stream>
struct lines {
    reg values[Bytes / sizeof(reg)];

    ADAMANT_SIMD lines(std::byte const* at, std::size_t prefetch_bytes)
    {
        prefetch<Bytes>(at, prefetch_bytes);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Bytes / sizeof(reg); ++k)
            values[k] = get(at + k * sizeof(reg));
    }
    ADAMANT_SIMD void write(std::byte* at) const
    {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Bytes / sizeof(reg); ++k)
            put<Stream>(at + k * sizeof(reg), values[k]);
    }
};

// Moments of quantized8 have 17 lines for 1024 elements: one of each in two turns, and two in every 16th time. A slice
// moves those lines that begin in groups of its own.
constexpr std::size_t lines_of_groups(std::size_t elems)
{
    return elems / 64 * 68 / 64;
}
template <std::size_t Param, std::size_t Grad, std::size_t WeightOut, stores Stores, bool ReadsWeights, bool Fences>
void move_beside_groups(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    constexpr bool stream = Stores == stores::all_streamed;
    constexpr std::size_t turn = 32;
    std::size_t line = lines_of_groups(begin);
    for (std::size_t i = begin; i < end; i += turn) {
        bool const second = i / turn % 2 != 0;
        std::byte* const at = arrays[second ? 3 : 2] + line * 64;
        lines<turn * Param, stream> const param(arrays[0] + i * Param, prefetch_bytes);
        read_lines<turn * Grad>(arrays[1] + i * Grad, prefetch_bytes);
        lines<64, stream> const moment(at, prefetch_bytes);
        if constexpr (ReadsWeights) {
            lines<turn * WeightOut, stream> const weight(arrays[4] + i * WeightOut, prefetch_bytes);
            weight.write(arrays[4] + i * WeightOut);
        }
        param.write(arrays[0] + i * Param);
        moment.write(at);
        if constexpr (WeightOut != 0 && !ReadsWeights) {
            ADAMANT_UNROLL
            for (std::size_t offset = 0; offset < turn * WeightOut; offset += sizeof(reg))
                put<Stores != stores::cached>(arrays[4] + i * WeightOut + offset, reg{});
        }
        if (second && ++line < lines_of_groups(i + turn)) {
            lines<64, stream> const exp_avg(arrays[2] + line * 64, prefetch_bytes);
            lines<64, stream> const exp_avg_sq(arrays[3] + line * 64, prefetch_bytes);
            exp_avg.write(arrays[2] + line * 64);
            exp_avg_sq.write(arrays[3] + line * 64);
            ++line;
        }
    }
    if constexpr (Stores != stores::cached && Fences)
        ADAMANT_BENCH_FENCE();
}

ADAMANT_SIMD void divide_by_root(reg numerator, reg square)
{
    float_reg root = reinterpret_cast<float_reg>(square);
    asm(ADAMANT_BENCH_SQRT : ADAMANT_BENCH_REGISTER(root)); // this instruction, and no estimate of it
    float_reg quotient = reinterpret_cast<float_reg>(numerator) / root;
    asm volatile("" : ADAMANT_BENCH_REGISTER(quotient));
}

// One line of the array with the smallest elements, and as many elements of the others, in turn: more of each at a time
// is slower, by 6% in float32. Reading all of a turn before writing any of it is faster, by 2% on an Ice Lake.
template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut, stores Stores,
          bool ReadsWeights, bool Fences, bool Divides>
void move_bytes(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    constexpr bool stream = Stores == stores::all_streamed;
    constexpr bool has_halves = Param == 2 || Grad == 2 || Moment == 2 || WeightOut == 2;
    constexpr std::size_t turn = has_halves ? 32 : 16;
    for (std::size_t i = begin; i < end; i += turn) {
        lines<turn * Param, stream> const param(arrays[0] + i * Param, prefetch_bytes);
        read_lines<turn * Grad>(arrays[1] + i * Grad, prefetch_bytes);
        lines<turn * Moment, stream> const exp_avg(arrays[2] + i * Moment, prefetch_bytes);
        lines<turn * Moment, stream> const exp_avg_sq(arrays[3] + i * Moment, prefetch_bytes);
        if constexpr (Divides) {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < turn * Moment / sizeof(reg); ++k)
                divide_by_root(exp_avg.values[k], exp_avg_sq.values[k]);
        }
        if constexpr (ReadsWeights) {
            lines<turn * WeightOut, stream> const weight(arrays[4] + i * WeightOut, prefetch_bytes);
            weight.write(arrays[4] + i * WeightOut);
        }
        param.write(arrays[0] + i * Param);
        exp_avg.write(arrays[2] + i * Moment);
        exp_avg_sq.write(arrays[3] + i * Moment);
        if constexpr (WeightOut != 0 && !ReadsWeights) {
            ADAMANT_UNROLL
            for (std::size_t offset = 0; offset < turn * WeightOut; offset += sizeof(reg))
                put<Stores != stores::cached>(arrays[4] + i * WeightOut + offset, reg{});
        }
    }
    if constexpr (Stores != stores::cached && Fences)
        ADAMANT_BENCH_FENCE(); // as the step does: streamed stores count when they are on their way to memory
}

template <std::size_t ElemBytes>
void read_bytes(std::byte const* array, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    for (std::size_t i = begin; i < end; i += 64)
        read_lines<64 * ElemBytes>(array + i * ElemBytes, prefetch_bytes);
}

inline void divide(float const* numerator, float const* square, std::size_t begin, std::size_t end)
{
    constexpr std::size_t lanes = sizeof(float_reg) / sizeof(float);
    for (std::size_t i = begin; i < end; i += 64) {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 64; k += lanes) {
            divide_by_root(*reinterpret_cast<reg const*>(numerator + i + k),
                           *reinterpret_cast<reg const*>(square + i + k));
        }
    }
}
