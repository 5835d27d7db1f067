// SPDX-License-Identifier: Apache-2.0
// Exceptions of the library and how their texts are made.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include <adamant/detail/core/abi.hpp>

// Outside the ABI namespace: an exception may be caught in a translation unit compiled with other flags.
namespace adamant {

/// Base of all of them; catch this one to catch everything the library throws itself.
class error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// An argument or option that is never valid: a negative eps, arrays that overlap, an unknown name.
class invalid_argument : public error {
    using error::error;
};

/// A valid request that this machine or build cannot serve: an instruction set that the CPU lacks.
class unavailable : public error {
    using error::error;
};

/// A device (a GPU) has failed or no longer answers. The text names the device and the operation.
class device_error : public error {
    using error::error;
};

/// A file that does not hold what was written to it: cut short, altered, or not of the format at all. An older file may
/// still be intact.
class corrupted : public error {
    using error::error;
};

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A part of a text: a string, which must live as long as this does, or a number.
class text_part {
public:
    text_part(std::string_view string) noexcept : string_(string.data()), bits_(string.size()) {}
    text_part(std::string const& string) noexcept : text_part(std::string_view(string)) {}
    text_part(char const* string) noexcept : text_part(std::string_view(string)) {}
    text_part(char letter) noexcept : bits_(static_cast<unsigned char>(letter)), kind_(kind::letter) {}
    text_part(unsigned long number) noexcept : bits_(number), kind_(kind::unsigned_number) {}
    text_part(unsigned long long number) noexcept : bits_(number), kind_(kind::unsigned_number) {}
    text_part(unsigned number) noexcept : bits_(number), kind_(kind::unsigned_number) {}
    text_part(int number) noexcept : text_part(static_cast<long>(number)) {}
    text_part(long number) noexcept : bits_(static_cast<std::uint64_t>(number)), kind_(kind::signed_number) {}
    // Written as a person would: 1e-40, not 0.000000.
    text_part(double number) noexcept : bits_(std::bit_cast<std::uint64_t>(number)), kind_(kind::real_number) {}
    text_part(bool) = delete;

    void append_to(std::string& text) const;

private:
    enum class kind { string, letter, unsigned_number, signed_number, real_number };
    char const* string_ = nullptr;
    std::uint64_t bits_; // the string's size, or what is no string
    kind kind_ = kind::string;
};

// The parts one after another. Compilers take a fraction of the time that they need for a chain of std::string's +.
std::string text_of(std::initializer_list<text_part> parts);

// Throw the exception of that name, whose text is "adamant: " and the parts.
[[noreturn]] void throw_invalid_argument(std::initializer_list<text_part> parts);
[[noreturn]] void throw_unavailable(std::initializer_list<text_part> parts);
[[noreturn]] void throw_device_error(std::initializer_list<text_part> parts);
// In an exception handler: what failed, and what that means for the caller.
[[noreturn]] void rethrow_as_device_error(std::string const& consequence);
[[noreturn]] void throw_corrupted(std::initializer_list<text_part> parts);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/core/error.ipp>
#endif
