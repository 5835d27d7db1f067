// SPDX-License-Identifier: Apache-2.0
// Retries a system call that a signal interrupts.
#pragma once

#include <cerrno>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Retries call() while it fails with EINTR. Network and FUSE file systems may return EINTR from any call.
template <class Call>
auto uninterrupted(Call const& call)
{
    for (;;)
        if (auto const result = call(); result >= 0 || errno != EINTR)
            return result;
}

} // namespace detail
ADAMANT_END_NAMESPACE
