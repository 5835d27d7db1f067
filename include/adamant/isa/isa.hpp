// SPDX-License-Identifier: Apache-2.0
// Which implementations (tiers) of the kernels there are, which of them this CPU can run, and the choice of one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class isa : std::uint8_t {
    automatic,   // in a request: the fastest that the CPU has. Never in a report.
    scalar,      // the oracle itself, one element at a time
    generic,     // xsimd, for whatever the including program is compiled for; NEON on Arm
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
[[nodiscard]] inline bool is_available(isa tier) noexcept
{
#if defined(ADAMANT_EMULATED_AVX512) // see kernel/targets.hpp
    return tier == isa::scalar || tier == isa::avx512 || tier == isa::avx512_bf16;
#elif defined(__x86_64__)
    switch (tier) {
    case isa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case isa::avx512:
        return is_available(isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case isa::avx512_bf16: return is_available(isa::avx512) && __builtin_cpu_supports("avx512bf16");
    default: break;
    }
#endif
    return tier == isa::scalar || tier == isa::generic;
}

[[nodiscard]] inline isa best_available_isa() noexcept
{
    isa best = isa::generic;
    for (isa const tier : all_isas)
        if (tier > best && is_available(tier))
            best = tier;
    return best;
}

namespace detail {

inline std::string available_isas()
{
    std::string list;
    for (isa const tier : all_isas)
        if (is_available(tier))
            (list += list.empty() ? "" : ", ") += name(tier);
    return list;
}

} // namespace detail

// The tier called `text`. Throws invalid_argument with the list of names where there is none.
[[nodiscard]] inline isa parse_isa(std::string_view text)
{
    if (text == name(isa::automatic))
        return isa::automatic;
    for (isa const tier : all_isas)
        if (text == name(tier))
            return tier;
    throw invalid_argument("adamant: no instruction set is called '" + std::string(text) +
                           "'; the names are automatic, scalar, generic, avx2, avx512 and avx512_bf16");
}

// The tier that a request comes to, never automatic. A request other than automatic is taken at its word; automatic
// reads the environment variable ADAMANT_ISA and, where that is unset or empty, takes the best available. Throws
// unavailable, naming the tier asked for and those there are, where the CPU lacks it: nothing falls back in silence.
// Reads the environment, so as thread-safe as std::getenv.
[[nodiscard]] inline isa resolve_isa(isa request)
{
    char const* source = "the caller";
    if (request == isa::automatic) {
        char const* const variable = std::getenv("ADAMANT_ISA");
        if (variable != nullptr && *variable != '\0') {
            request = parse_isa(variable);
            source = "ADAMANT_ISA";
        }
    }
    if (request == isa::automatic)
        return best_available_isa();
    if (!is_available(request))
        throw unavailable("adamant: " + std::string(source) + " asks for the instruction set " +
                          std::string(name(request)) + ", but this CPU has only " + detail::available_isas() +
                          "; ask for one of these, or for automatic");
    return request;
}

ADAMANT_END_NAMESPACE
