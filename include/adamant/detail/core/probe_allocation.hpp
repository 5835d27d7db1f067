// SPDX-License-Identifier: Apache-2.0
// Checks that memory is available before a library call that cannot handle running out of it.
#pragma once

#include <cstddef>
#include <new>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Whether an allocation of this size succeeds now. Frees the memory immediately. Use it before calls of libraries that
// crash or end the process when memory runs out (hwloc, the OpenMP runtimes). Another thread may still take the memory
// before the call does.
inline bool probe_allocation(std::size_t bytes) noexcept
{
    void* memory = ::operator new(bytes, std::nothrow);
    asm volatile("" : "+r"(memory) : : "memory"); // keeps compilers from removing the pair
    ::operator delete(memory);
    return memory != nullptr;
}

} // namespace detail
ADAMANT_END_NAMESPACE
