// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: reads and writes structs whose sizes differ between versions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <adamant/detail/c/errors.hpp>

namespace adamant::c {

// Description of a struct: its name; its size in version 1, which is the minimum; and its defaults, which also apply to
// fields that the caller's version lacks. Specialized in struct_descriptions.hpp.
template <class Struct>
struct struct_description;

// Upper bound for structs of all versions. A larger struct_bytes is uninitialized.
inline constexpr std::size_t most_struct_bytes = 4096;

template <class Struct>
void check_bytes(std::size_t bytes)
{
    using kind = struct_description<Struct>;
    static_assert(kind::first_bytes <= sizeof(Struct) && sizeof(Struct) <= most_struct_bytes);
    if (bytes < kind::first_bytes || bytes > most_struct_bytes)
        detail::throw_invalid_argument({"struct_bytes of ", kind::name, " is ", bytes, ", but the struct has ",
                                        sizeof(Struct), " bytes. Call ", kind::name, "_init(&s, sizeof s) first."});
}

// Throws invalid_argument unless the caller's struct is initialized.
template <class Struct>
void check_target(Struct const* target)
{
    check_bytes<Struct>(needed(target, struct_description<Struct>::name).struct_bytes);
}
template <class Struct>
void check_target_or_null(Struct const* target)
{
    if (target != nullptr)
        check_target(target);
}

// Converts the caller's struct to this version.
template <class Struct>
Struct read(Struct const* source)
{
    check_target(source);
    auto const* const bytes = reinterpret_cast<unsigned char const*>(source);
    for (std::size_t i = sizeof(Struct); i < source->struct_bytes; ++i)
        if (bytes[i] != 0)
            detail::throw_invalid_argument({"byte ", i, " of ", struct_description<Struct>::name,
                                            " is set, but version ", adamant_version(),
                                            " of the library does not know it. Was the program compiled for a later "
                                            "version?"});
    Struct known = struct_description<Struct>::defaults();
    std::memcpy(&known, source, std::min(sizeof(Struct), source->struct_bytes));
    return known;
}
// Reads optional options: null means the defaults.
template <class Struct>
Struct read_or_defaults(Struct const* source)
{
    return source == nullptr ? struct_description<Struct>::defaults() : read(source);
}

// Writes all fields of the caller's struct except struct_bytes. Zeroes the fields that this version does not know.
template <class Struct>
void write(Struct known, Struct* target)
{
    std::size_t const bytes = target->struct_bytes;
    known.struct_bytes = bytes;
    std::memcpy(target, &known, std::min(sizeof known, bytes));
    if (bytes > sizeof known)
        std::memset(reinterpret_cast<unsigned char*>(target) + sizeof known, 0, bytes - sizeof known);
}

// Implements every adamant_..._init().
template <class Struct>
adamant_status init(Struct* target, std::size_t bytes) noexcept
{
    return guarded([&] {
        needed(target, struct_description<Struct>::name);
        check_bytes<Struct>(bytes);
        target->struct_bytes = bytes;
        write(struct_description<Struct>::defaults(), target);
    });
}

} // namespace adamant::c
