// SPDX-License-Identifier: Apache-2.0
// The loops of limit.hpp, for one width of register.

typedef std::uint64_t reg __attribute__((vector_size(ADAMANT_BENCH_VECTOR_BYTES)));

template <std::size_t ElemBytes, bool Write>
[[gnu::always_inline]] inline void pass(std::byte* base, std::size_t i, std::size_t prefetch_bytes)
{
    std::byte* const at = base + i * ElemBytes;
    if (prefetch_bytes != 0) {
#pragma GCC unroll 8
        for (std::size_t offset = 0; offset < 64 * ElemBytes; offset += 64)
            __builtin_prefetch(at + offset + prefetch_bytes);
    }
#pragma GCC unroll 32
    for (std::size_t offset = 0; offset < 64 * ElemBytes; offset += sizeof(reg)) {
        reg value = *reinterpret_cast<reg const*>(at + offset);
        asm volatile("" : ADAMANT_BENCH_CONSTRAINT(value)); // read, and perhaps changed, as far as the compiler knows
        if constexpr (Write)
            *reinterpret_cast<reg*>(at + offset) = value;
    }
}

template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut>
void move_bytes(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes, bool stream)
{
    for (std::size_t i = begin; i < end; i += 64) {
        pass<Param, true>(arrays[0], i, prefetch_bytes);
        pass<Grad, false>(arrays[1], i, prefetch_bytes);
        pass<Moment, true>(arrays[2], i, prefetch_bytes);
        pass<Moment, true>(arrays[3], i, prefetch_bytes);
        if constexpr (WeightOut != 0) {
            reg const value = {};
#pragma GCC unroll 32
            for (std::size_t offset = 0; offset < 64 * WeightOut; offset += sizeof(reg)) {
                auto* const at = reinterpret_cast<reg*>(arrays[4] + i * WeightOut + offset);
                if (stream)
                    ADAMANT_BENCH_STREAM(at, value);
                else
                    *at = value;
            }
        }
    }
}

// All three arrays that a step writes, stored past the caches instead.
template <std::size_t Param, std::size_t Grad, std::size_t Moment>
void move_bytes_streamed(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    std::size_t const elem_bytes[] = {Param, Grad, Moment, Moment};
    for (std::size_t i = begin; i < end; i += 64)
        for (int array = 0; array < 4; ++array)
            for (std::size_t offset = 0; offset < 64 * elem_bytes[array]; offset += sizeof(reg)) {
                std::byte* const at = arrays[array] + i * elem_bytes[array] + offset;
                if (prefetch_bytes != 0 && offset % 64 == 0)
                    __builtin_prefetch(at + prefetch_bytes);
                reg value = *reinterpret_cast<reg const*>(at);
                asm volatile("" : ADAMANT_BENCH_CONSTRAINT(value));
                if (array != 1)
                    ADAMANT_BENCH_STREAM(reinterpret_cast<reg*>(at), value);
            }
}
