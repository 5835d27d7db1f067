// SPDX-License-Identifier: Apache-2.0
// The exceptions this library throws. Each text says what was asked, what was found and what to do.
#pragma once

#include <stdexcept>
#include <string>

#include <adamant/core/abi.hpp>

// Outside the ABI namespace: an exception may be caught in a translation unit compiled with other flags.
namespace adamant {

// Base of all of them; catch this one to catch everything the library throws itself.
class error : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An argument or option that is never valid: a negative eps, arrays that overlap, an unknown name.
class invalid_argument : public error {
    using error::error;
};

// A valid request that this machine or build cannot serve: an instruction set that the CPU lacks.
class unavailable : public error {
    using error::error;
};

// A device (a GPU) has failed or no longer answers. The text names the device and the operation.
class device_error : public error {
    using error::error;
};

// A file that does not hold what was written to it: cut short, altered, or not of the format at all. An older file may
// still be intact.
class corrupted : public error {
    using error::error;
};

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A number as a person would write it: 1e-40, not 0.000000.
std::string text(double value);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/core/error.ipp>
#endif
