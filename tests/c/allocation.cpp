// SPDX-License-Identifier: Apache-2.0
// What allocation.hpp declares: all allocations of the program.
#include "allocation.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

thread_local long allocations_left = -1;
thread_local bool allocation_failed = false;

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) noexcept
{
    if (allocations_left >= 0 && allocations_left-- == 0) {
        allocation_failed = true;
        return nullptr;
    }
    return alignment <= alignof(std::max_align_t)
               ? std::malloc(bytes == 0 ? 1 : bytes)
               : std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
}
void* allocate_or_throw(std::size_t bytes, std::size_t alignment = 1)
{
    if (void* const memory = allocate(bytes, alignment))
        return memory;
    throw std::bad_alloc();
}
} // namespace
void* operator new(std::size_t bytes)
{
    return allocate_or_throw(bytes);
}
void* operator new[](std::size_t bytes)
{
    return allocate_or_throw(bytes);
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept
{
    return allocate(bytes, 1);
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept
{
    return allocate(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t a)
{
    return allocate_or_throw(bytes, std::size_t(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a)
{
    return allocate_or_throw(bytes, std::size_t(a));
}
void operator delete(void* memory) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept
{
    std::free(memory);
}
