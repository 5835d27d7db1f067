// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: translates exceptions to statuses, and checks arguments.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/adamant.h>
#include <adamant/error.hpp>
#include <adamant/detail/c/names.hpp>

namespace adamant::c {

// Thrown when adamant_optimizer_options.reduce returns an error or throws.
struct reduce_failed : error {
    using error::error;
};

// Stores the text for adamant_last_error(), and returns the status. Allocates nothing. names: take precedence over
// c_names.
adamant_status fail(adamant_status status, std::string_view text, std::span<c_name const> names) noexcept;

// After a successful save: sets adamant_last_error() to the part that failed (such as syncing the folder), or to "".
inline void note_of_save(std::string const& reason)
{
    (void)fail(ADAMANT_OK, reason.empty() ? reason : "adamant: the file is complete, but " + reason, {});
}

// Stores the text of the current exception, and returns its status.
adamant_status status_of_exception(std::span<c_name const> names) noexcept;

// Runs work() and translates exceptions. Every function of the interface that can fail uses it.
template <class Work>
adamant_status guarded(Work const& work, std::span<c_name const> names = {}) noexcept
{
    try {
        work();
        return ADAMANT_OK;
    } catch (...) {
        return status_of_exception(names);
    }
}

template <class T>
T& needed(T* pointer, char const* name)
{
    if (pointer == nullptr)
        detail::throw_invalid_argument({name, " is a null pointer"});
    return *pointer;
}

// Returns a copy of the caller's array. Throws for a count that no array has: its end would wrap around.
template <class T>
std::vector<T> copy_of(T const* array, std::size_t count, char const* name)
{
    if (count == 0)
        return {};
    needed(array, name);
    if (count > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T))
        detail::throw_invalid_argument({name, " has ", count, " elements, which no memory holds"});
    return {array, array + count};
}

// Writes an optional result.
template <class T>
void give(T* target, T const& value)
{
    if (target != nullptr)
        *target = value;
}

} // namespace adamant::c
