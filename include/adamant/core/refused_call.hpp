// SPDX-License-Identifier: Apache-2.0
// Advice where the system refuses a call, by its error number.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// For a call that needs no privilege. usual: what to do where a limit is the reason.
inline std::string advice_on(int error, std::string_view usual)
{
    if (error == EPERM || error == EACCES)
        return "the system forbids the call itself; look for a seccomp filter or a security module";
    if (error == ENOSYS)
        return "the kernel does not have this call, or a seccomp filter hides it";
    return std::string(usual);
}

} // namespace detail
ADAMANT_END_NAMESPACE
