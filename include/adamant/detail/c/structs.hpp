// SPDX-License-Identifier: Apache-2.0
// The inside of the C library: structs whose sizes differ between versions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

#include <adamant/detail/c/errors.hpp>

namespace adamant::c {

// Of each struct: its name, its size in version 1, below which none can be, and its defaults, which also stand for
// fields that the caller's version does not have. Specialised in about.hpp.
template <class Struct>
struct about;

// No struct of any version is larger: a larger struct_bytes has not been initialised.
inline constexpr std::size_t most_struct_bytes = 4096;

template <class Struct>
void check_bytes(std::size_t bytes)
{
    using kind = about<Struct>;
    static_assert(kind::first_bytes <= sizeof(Struct) && sizeof(Struct) <= most_struct_bytes);
    if (bytes < kind::first_bytes || bytes > most_struct_bytes)
        detail::throw_invalid_argument({"struct_bytes of ", kind::name, " is ", bytes, ", but the struct has ",
                                        sizeof(Struct), "; call ", kind::name, "_init(&it, sizeof it) first"});
}

// Throws unless the caller's struct can be written to.
template <class Struct>
void check_target(Struct const* target)
{
    check_bytes<Struct>(needed(target, about<Struct>::name).struct_bytes);
}
template <class Struct>
void check_target_or_null(Struct const* target)
{
    if (target != nullptr)
        check_target(target);
}

// The caller's struct in this version.
template <class Struct>
Struct read(Struct const* from)
{
    check_target(from);
    auto const* const bytes = reinterpret_cast<unsigned char const*>(from);
    for (std::size_t i = sizeof(Struct); i < from->struct_bytes; ++i)
        if (bytes[i] != 0)
            detail::throw_invalid_argument({"byte ", i, " of ", about<Struct>::name,
                                            " is set, which this version of the library (", adamant_version(),
                                            ") does not know; was the program compiled for a later one?"});
    Struct known = about<Struct>::defaults();
    std::memcpy(&known, from, std::min(sizeof(Struct), from->struct_bytes));
    return known;
}
// For options that may be left out.
template <class Struct>
Struct read_or_defaults(Struct const* from)
{
    return from == nullptr ? about<Struct>::defaults() : read(from);
}

// Writes all fields that the caller's struct has, but struct_bytes; those that this version does not know become zero.
template <class Struct>
void write(Struct known, Struct* to)
{
    std::size_t const bytes = to->struct_bytes;
    known.struct_bytes = bytes;
    std::memcpy(to, &known, std::min(sizeof known, bytes));
    if (bytes > sizeof known)
        std::memset(reinterpret_cast<unsigned char*>(to) + sizeof known, 0, bytes - sizeof known);
}

// What every adamant_..._init() does.
template <class Struct>
adamant_status init(Struct* to, std::size_t bytes) noexcept
{
    return guarded([&] {
        needed(to, about<Struct>::name);
        check_bytes<Struct>(bytes);
        to->struct_bytes = bytes;
        write(about<Struct>::defaults(), to);
    });
}

} // namespace adamant::c
