// SPDX-License-Identifier: Apache-2.0
// Which implementations (tiers) of the kernels there are, which of them this CPU can run, and the choice of one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class isa : std::uint8_t {
    automatic,   // in a request: the fastest that the CPU has. Never in a report.
    scalar,      // the oracle itself, one element at a time
    generic,     // the architecture's baseline: NEON on Arm, SSE2 on x86-64
    avx2,        // AVX2, FMA
    avx512,      // AVX-512 F, BW, DQ, VL
    avx512_bf16, // the same with AVX512_BF16's conversion
};

inline constexpr isa all_isas[] = {isa::scalar, isa::generic, isa::avx2, isa::avx512, isa::avx512_bf16};

// The name in reports, in ADAMANT_ISA and on command lines.
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

// Whether this CPU and its operating system can run the tier. The vendor is never asked for, only features.
[[nodiscard]] bool is_available(isa tier) noexcept;

[[nodiscard]] isa best_available_isa() noexcept;

namespace detail {

std::string available_isas();

} // namespace detail

// The tier called `text`. Throws invalid_argument with the list of names where there is none.
[[nodiscard]] isa parse_isa(std::string_view text);

// The tier that a request comes to, never automatic. A request other than automatic is taken at its word; automatic
// reads the environment variable ADAMANT_ISA and, where that is unset or empty, takes the best available. Throws
// unavailable, naming the tier asked for and those there are, where the CPU lacks it: nothing falls back in silence.
// Reads the environment, so as thread-safe as std::getenv.
[[nodiscard]] isa resolve_isa(isa request);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/kernel/isa.ipp>
#endif
