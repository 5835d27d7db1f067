// SPDX-License-Identifier: Apache-2.0
// Opt-in: the 64-bit XXH3 checksum of checkpoints, from xxHash's header alone.
#pragma once

#if !__has_include(<xxhash.h>)
#error                                                                                                                 \
    "adamant's checkpoint files need xxHash 0.8 or newer, and the compiler finds no xxhash.h (Debian and Ubuntu: libxxhash-dev). Nothing has to be linked for it."
#endif

// Inlining makes xxHash's functions static and renames them, so they conflict neither with a linked xxHash nor between
// translation units that are compiled with different -m flags. At -Og, GCC cannot inline what xxHash tells it to inline
// always; without these hints, xxHash is as fast at -O1 to -O3.
#if defined(XXH_INLINE_ALL)
#include <xxhash.h>
#else
#define XXH_INLINE_ALL
#if !defined(XXH_NO_INLINE_HINTS)
#define XXH_NO_INLINE_HINTS 1
#include <xxhash.h>
#undef XXH_NO_INLINE_HINTS
#else
#include <xxhash.h>
#endif
#undef XXH_INLINE_ALL
#endif

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The checksum of consecutive pieces. It does not depend on how the bytes are divided into pieces.
class xxh3 {
public:
    xxh3() noexcept { XXH3_64bits_reset(&state_); }
    void add(void const* data, std::size_t bytes) noexcept
    {
        if (bytes != 0)
            XXH3_64bits_update(&state_, data, bytes);
    }
    void add(std::string_view text) noexcept { add(text.data(), text.size()); }
    [[nodiscard]] std::uint64_t digest() const noexcept { return XXH3_64bits_digest(&state_); }

private:
    XXH3_state_t state_;
};

// Returns the 16 hex digits of files, the highest first.
inline std::string digest_text(std::uint64_t digest)
{
    std::string result(16, '0');
    for (std::size_t i = 16; i-- != 0; digest >>= 4)
        result[i] = "0123456789abcdef"[digest & 15];
    return result;
}

} // namespace detail
ADAMANT_END_NAMESPACE
