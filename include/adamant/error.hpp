// SPDX-License-Identifier: Apache-2.0
// Exception types, and functions that build their messages.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include <adamant/detail/core/abi.hpp>

// The exception types are outside the ABI namespace because a translation unit compiled with other flags may catch
// them.
namespace adamant {

/// Base of all exceptions that the library itself throws.
///
/// The standard library's exceptions, such as std::bad_alloc, pass through unchanged.
class error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// An argument or option that is never valid: a negative eps, overlapping arrays, an unknown name.
class invalid_argument : public error {
    using error::error;
};

/// A valid request that this machine or build cannot serve, such as an instruction set that the CPU lacks.
class unavailable : public error {
    using error::error;
};

/// A device (a GPU) has failed or no longer answers. The message names the device and the operation.
class device_error : public error {
    using error::error;
};

/// A file is truncated, altered or not of the expected format. An older file may still be intact.
class corrupted : public error {
    using error::error;
};

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A part of a text: a number, or a view of a string, which must outlive the part.
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
    // Printed with up to 9 significant digits: 1e-40, not 0.000000.
    text_part(double number) noexcept : bits_(std::bit_cast<std::uint64_t>(number)), kind_(kind::real_number) {}
    text_part(bool) = delete;

    void append_to(std::string& text) const;

private:
    enum class kind { string, letter, unsigned_number, signed_number, real_number };
    char const* string_ = nullptr;
    std::uint64_t bits_; // the string's size, the letter or the number
    kind kind_ = kind::string;
};

// Concatenates the parts. Compiles in a fraction of the time that a chain of std::string's + takes.
std::string text_of(std::initializer_list<text_part> parts);
// A number and a noun: "1 shard", "2 shards".
std::string counted(std::uint64_t number, std::string_view noun);

// Throw the exception of that name. Its message is "adamant: " followed by the parts.
[[noreturn]] void throw_invalid_argument(std::initializer_list<text_part> parts);
[[noreturn]] void throw_unavailable(std::initializer_list<text_part> parts);
[[noreturn]] void throw_device_error(std::initializer_list<text_part> parts);
// Call in an exception handler: throws a device_error with the current exception's message followed by `consequence`.
[[noreturn]] void rethrow_as_device_error(std::string const& consequence);
[[noreturn]] void throw_corrupted(std::initializer_list<text_part> parts);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/core/error.ipp>
#endif
