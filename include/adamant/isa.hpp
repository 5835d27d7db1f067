// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the kernels: detection, names and selection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

/// An instruction set that kernels are compiled for (a tier). The choice changes no bit of a result.
enum class isa : std::uint8_t {
    automatic,   ///< in a request: ADAMANT_ISA if it is set, else the fastest that the CPU supports; never in a report
    scalar,      ///< the reference implementation, one element at a time
    neon,        ///< NEON, which every AArch64 processor has
    avx2,        ///< AVX2 and FMA
    avx512,      ///< AVX-512 F, BW, DQ and VL
    avx512_bf16, ///< avx512 and AVX512_BF16's conversion
};

/// All tiers from the slowest to the fastest, without `automatic`.
inline constexpr isa all_isas[] = {isa::scalar, isa::neon, isa::avx2, isa::avx512, isa::avx512_bf16};

/// Returns the tier's name in reports, in ADAMANT_ISA and on command lines.
[[nodiscard]] constexpr std::string_view name(isa tier) noexcept
{
    switch (tier) {
    case isa::automatic: return "automatic";
    case isa::scalar: return "scalar";
    case isa::neon: return "neon";
    case isa::avx2: return "avx2";
    case isa::avx512: return "avx512";
    case isa::avx512_bf16: return "avx512_bf16";
    }
    return "unknown";
}

/// Returns whether this CPU and its operating system can run the tier. Checks CPU features, never the vendor.
[[nodiscard]] bool is_available(isa tier) noexcept;

/// Returns the fastest tier that this CPU can run.
[[nodiscard]] isa best_available_isa() noexcept;

namespace detail {

std::string available_isas();

} // namespace detail

/// Returns the tier with the given name.
/// @throws invalid_argument  for an unknown name; the message lists the valid names.
[[nodiscard]] isa parse_isa(std::string_view text);

/// Resolves a request to the tier to use; never returns `automatic`.
///
/// `automatic` reads the environment variable ADAMANT_ISA and, if that is unset or empty, selects the best available
/// tier. Any other request is used as given: there are no silent fallbacks. As thread-safe as std::getenv.
/// @throws unavailable  if the CPU lacks the requested tier; the message names it and the available tiers.
/// @throws invalid_argument  if ADAMANT_ISA is not the name of a tier.
[[nodiscard]] isa resolve_isa(isa request);

/// Returns the default prefetch distance of a step, in bytes. Changes no bit of a result. Pure.
///
/// 256 on AMD processors, because a longer distance disturbs their hardware prefetchers: with 2048, a Zen 4 core takes
/// 14 to 20% longer in float32. 2048 on other processors, where square roots and divisions fill the reorder
/// window, so that a core reaches later loads too late.
[[nodiscard]] std::uint32_t default_prefetch_bytes() noexcept;

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/core/isa.ipp>
#endif
