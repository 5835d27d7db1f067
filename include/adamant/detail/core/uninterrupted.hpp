// SPDX-License-Identifier: Apache-2.0
// Repeating a system call that a signal interrupts.
#pragma once

#include <cerrno>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Repeats a system call while a signal interrupts it, which network and FUSE file systems allow for any call.
template <class Call>
auto uninterrupted(Call const& call)
{
    for (;;)
        if (auto const result = call(); result >= 0 || errno != EINTR)
            return result;
}

} // namespace detail
ADAMANT_END_NAMESPACE
