// SPDX-License-Identifier: Apache-2.0
// Asking for memory before somebody else does who cannot be refused any.
#pragma once

#include <cstddef>
#include <new>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Whether so much memory is to be had now, which is given back at once. For what comes next in a library that crashes,
// or ends the process, where it gets none (hwloc, the OpenMP runtimes); nobody can promise that it will still be there.
inline bool has_memory(std::size_t bytes) noexcept
{
    void* memory = ::operator new(bytes, std::nothrow);
    asm volatile("" : "+r"(memory) : : "memory"); // or a compiler leaves both out
    ::operator delete(memory);
    return memory != nullptr;
}

} // namespace detail
ADAMANT_END_NAMESPACE
