// SPDX-License-Identifier: Apache-2.0
// Asking for memory before a call that cannot handle a lack of it.
#pragma once

#include <cstddef>
#include <new>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Whether this much memory is available now; it is freed immediately. For calls of libraries that crash, or end the
// process, without memory (hwloc, the OpenMP runtimes). Other threads may still take it before the call does.
inline bool probe_allocation(std::size_t bytes) noexcept
{
    void* memory = ::operator new(bytes, std::nothrow);
    asm volatile("" : "+r"(memory) : : "memory"); // or a compiler leaves both out
    ::operator delete(memory);
    return memory != nullptr;
}

} // namespace detail
ADAMANT_END_NAMESPACE
