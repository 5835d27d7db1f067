// SPDX-License-Identifier: Apache-2.0
// Error texts for system calls that fail: the reason and the remedy for an error number.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Returns advice for a call that needs no privilege. default_advice: the remedy if the call hit a limit.
inline std::string advice_on(int error, std::string_view default_advice)
{
    if (error == EPERM || error == EACCES)
        return "the system forbids the call itself; look for a seccomp filter or a security module";
    if (error == ENOSYS)
        return "the kernel does not have this call, or a seccomp filter hides it";
    return std::string(default_advice);
}

// Returns advice for mbind(), get_mempolicy() and move_pages(), which container engines allow only with CAP_SYS_NICE.
inline std::string advice_on_numa_call(int error, std::string_view default_advice)
{
    if (error == EPERM)
        return "a seccomp filter forbids it; in a container, add CAP_SYS_NICE";
    return advice_on(error, default_advice);
}

// Returns for example "mmap: Cannot allocate memory; see ulimit -v". advice may be empty.
inline std::string refused_text(std::string_view call, int error, std::string_view advice)
{
    return text_of({call, ": ", std::strerror(error), advice.empty() ? "" : "; ", advice});
}

} // namespace detail
ADAMANT_END_NAMESPACE
