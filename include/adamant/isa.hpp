// SPDX-License-Identifier: Apache-2.0
// Instruction sets: which ones the CPU has and which one to use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class isa : std::uint8_t {
    automatic,   ///< in a request: the fastest that the CPU has. Never in a report.
    scalar,      ///< the reference implementation itself, one element at a time
    generic,     ///< the architecture's baseline: NEON on Arm, SSE2 on x86-64
    avx2,        ///< AVX2, FMA
    avx512,      ///< AVX-512 F, BW, DQ, VL
    avx512_bf16, ///< the same with AVX512_BF16's conversion
};

inline constexpr isa all_isas[] = {isa::scalar, isa::generic, isa::avx2, isa::avx512, isa::avx512_bf16};

/// The name in reports, in ADAMANT_ISA and on command lines.
[[nodiscard]] constexpr std::string_view name(isa tier) noexcept
{
    switch (tier) {
    case isa::automatic: return "automatic";
    case isa::scalar: return "scalar";
    case isa::generic: return "generic";
    case isa::avx2: return "avx2";
    case isa::avx512: return "avx512";
    case isa::avx512_bf16: return "avx512_bf16";
    }
    return "unknown";
}

/// Whether this CPU and its operating system can run the tier. The vendor is never asked for, only features.
[[nodiscard]] bool is_available(isa tier) noexcept;

[[nodiscard]] isa best_available_isa() noexcept;

namespace detail {

std::string available_isas();

} // namespace detail

/// The tier called `text`. Throws invalid_argument with the list of names where there is none.
[[nodiscard]] isa parse_isa(std::string_view text);

/// The tier that a request comes to, never automatic. A request other than automatic is taken at its word; automatic
/// reads the environment variable ADAMANT_ISA and, where that is unset or empty, takes the best available. Throws
/// unavailable, naming the tier asked for and those there are, where the CPU lacks it: nothing falls back in silence.
/// Reads the environment, so as thread-safe as std::getenv.
[[nodiscard]] isa resolve_isa(isa request);

/// How far ahead a step asks for memory by default: 256 bytes on AMD's processors, whose own
/// prefetching a step that asks further ahead gets in the way of (2048 bytes take a Zen 4 core 14 to 20% longer in
/// float32), else 2048, because square roots and divisions fill the window in which a core would find the misses
/// itself. Changes no bit of a result. Pure.
[[nodiscard]] std::uint32_t default_prefetch_bytes() noexcept;

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/core/isa.ipp>
#endif
