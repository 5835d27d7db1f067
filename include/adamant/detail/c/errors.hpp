// SPDX-License-Identifier: Apache-2.0
// The inside of the C library: where exceptions become statuses, and the checks that every function makes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <adamant/adamant.h>
#include <adamant/error.hpp>
#include <adamant/detail/c/names.hpp>

namespace adamant::c {

// What adamant_optimizer_options.reduce returned, or threw.
struct reduce_failed : error {
    using error::error;
};

// Keeps the text for adamant_last_error(), and returns the status. Allocates nothing.
// own: names that go before c_names.
adamant_status fail(adamant_status status, std::string_view text, std::span<c_name const> own) noexcept;

// Sets adamant_last_error() to what a successful save could not do, or to "".
inline void note_of_save(std::string const& reason)
{
    (void)fail(ADAMANT_OK, reason.empty() ? reason : "adamant: the file is complete, but " + reason, {});
}

// The exception that is being handled as a status, with its text kept.
adamant_status status_of_exception(std::span<c_name const> own) noexcept;

// What every function of the interface that can fail does its work in.
template <class Work>
adamant_status guarded(Work const& work, std::span<c_name const> own = {}) noexcept
{
    try {
        work();
        return ADAMANT_OK;
    } catch (...) {
        return status_of_exception(own);
    }
}

template <class T>
T& needed(T* pointer, char const* what)
{
    if (pointer == nullptr)
        detail::throw_invalid_argument({what, " is a null pointer"});
    return *pointer;
}

// A result that the caller may not want.
template <class T>
void give(T* where, T const& value)
{
    if (where != nullptr)
        *where = value;
}

} // namespace adamant::c
