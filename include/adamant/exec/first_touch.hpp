// SPDX-License-Identifier: Apache-2.0
// Memory that is first touched by the threads that will work on it, so that the kernel puts it near them.
#pragma once

#include <cstddef>
#include <type_traits>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory.hpp>

ADAMANT_BEGIN_INLINE_NAMESPACE

// A buffer of n zeros. Each element is first touched by the thread that begins with it in a step over n elements.
// Throws what buffer throws, before anything is touched, and what executor::for_each_home() throws. Meant for set-up.
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n)
{
    buffer<T> made(n);
    cpu.for_each_home(n, [&](slice part) { made.touch(part.begin, part.end); });
    return made;
}
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n, memory_options const& options)
{
    buffer<T> made(n, options);
    cpu.for_each_home(n, [&](slice part) { made.touch(part.begin, part.end); });
    return made;
}

ADAMANT_END_INLINE_NAMESPACE
