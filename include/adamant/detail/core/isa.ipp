// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/isa.hpp>.
#pragma once

#include <cstdlib>

#include <adamant/isa.hpp>
#include <adamant/detail/core/granule.hpp>

ADAMANT_BEGIN_NAMESPACE

[[gnu::noinline]] ADAMANT_DECL bool is_available(isa tier) noexcept
{
#if defined(ADAMANT_EMULATED_AVX512) // see detail/kernels/targets.hpp
    return tier == isa::scalar || tier == isa::avx512 || tier == isa::avx512_bf16;
#elif defined(__x86_64__)
    switch (tier) {
    case isa::avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case isa::avx512:
        return is_available(isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case isa::avx512_bf16: return is_available(isa::avx512) && __builtin_cpu_supports("avx512bf16");
    default: return tier == isa::scalar;
    }
#else
    return tier == isa::scalar || tier == isa::neon;
#endif
}

ADAMANT_DECL isa best_available_isa() noexcept
{
    isa best = isa::scalar;
    for (isa const tier : all_isas)
        if (tier > best && is_available(tier))
            best = tier;
    return best;
}

namespace detail {

ADAMANT_DECL std::string available_isas()
{
    std::string list;
    for (isa const tier : all_isas)
        if (is_available(tier))
            list.append(list.empty() ? "" : ", ").append(name(tier));
    return list;
}

} // namespace detail

namespace detail {

// source: who named it, in the error.
inline isa parse_isa(std::string_view text, std::string_view source)
{
    if (text == name(isa::automatic))
        return isa::automatic;
    for (isa const tier : all_isas)
        if (text == name(tier))
            return tier;
    throw_invalid_argument({"cannot parse ", source, " '", text,
                            "': unknown name. Use automatic, scalar, neon, avx2, avx512 or avx512_bf16."});
}

} // namespace detail

ADAMANT_DECL isa parse_isa(std::string_view text)
{
    return detail::parse_isa(text, "instruction set");
}

ADAMANT_DECL isa resolve_isa(isa request)
{
    char const* source = "the caller";
    if (request == isa::automatic) {
        char const* const variable = std::getenv("ADAMANT_ISA");
        if (variable != nullptr && *variable != '\0') {
            request = detail::parse_isa(variable, "the environment variable ADAMANT_ISA,");
            source = "ADAMANT_ISA";
        }
    }
    if (request == isa::automatic)
        return best_available_isa();
    if (!is_available(request))
        detail::throw_unavailable({"cannot use instruction set ", name(request), ", requested by ", source,
                                   ": this CPU has only ", detail::available_isas(),
                                   ". Request one of these, or automatic."});
    return request;
}

ADAMANT_DECL std::uint32_t default_prefetch_bytes() noexcept
{
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd"))
        return 256;
#endif
    return kernel::default_prefetch_bytes;
}

ADAMANT_END_NAMESPACE
