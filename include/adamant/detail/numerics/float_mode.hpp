// SPDX-License-Identifier: Apache-2.0
// Sets the processor's floating-point mode for the duration of a scope.
#pragma once

#include <cfenv>
#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_INLINE_NAMESPACE

enum class subnormals : bool {
    kept,    // IEEE 754's gradual underflow: the mode of the scalar reference implementation and of the
             // double-precision coefficients
    flushed, // hardware replaces inputs and results below 2^-126 by zero, at full speed: the mode of the kernels
};

// Sets this thread's mode to round-to-nearest-even with every exception masked. The destructor restores the caller's
// whole mode: rounding, FTZ, DAZ, exception masks and the sticky exception flags. The scope sets all flags, so that a
// nested scope of the same mode recognises the register's value and leaves it alone. A nested scope costs one read; any
// other scope costs some 10 ns. The "memory" clobbers keep all memory accesses of the scope between the two switches.
// Keep data that crosses the ends of the scope in memory: the clobbers do not order locals.
class float_mode_scope {
public:
    explicit float_mode_scope(subnormals mode) noexcept
    {
#if defined(__x86_64__)
        std::uint32_t const wanted = mode == subnormals::flushed ? 0x9fffu : 0x1fbfu; // FTZ|DAZ|masks|flags, or without
        asm volatile("stmxcsr %0" : "=m"(control_) : : "memory");
        changed_ = control_ != wanted;
        if (changed_)
            asm volatile("ldmxcsr %0" : : "m"(wanted) : "memory");
#else
        std::uint64_t const wanted = mode == subnormals::flushed ? std::uint64_t{1} << 24 : 0; // FZ, IEEE half format
        std::uint64_t const flags = 0x9f;
        asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=&r"(control_), "=&r"(status_) : : "memory");
        changed_ = control_ != wanted || (status_ & flags) != flags;
        if (changed_)
            asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(wanted), "r"(status_ | flags) : "memory");
#endif
    }
    ~float_mode_scope()
    {
        if (!changed_)
            return;
#if defined(__x86_64__)
        // The fence waits until the mode is restored: on Sapphire Rapids, a scope that begins earlier takes 60 ns more.
        asm volatile("ldmxcsr %0\n\tlfence" : : "m"(control_) : "memory");
#else
        asm volatile("msr fpsr, %1\n\tmsr fpcr, %0" : : "r"(control_), "r"(status_) : "memory");
#endif
    }
    float_mode_scope(float_mode_scope const&) = delete;
    float_mode_scope& operator=(float_mode_scope const&) = delete;

private:
#if defined(__x86_64__)
    std::uint32_t control_;
#else
    std::uint64_t control_;
    std::uint64_t status_;
#endif
    bool changed_;
};

// Disables the caller's traps (feenableexcept). The destructor restores the whole environment. If no trap is enabled,
// the scope only checks for traps, which costs some 5 ns.
class no_traps_scope {
public:
    no_traps_scope() noexcept : active_(has_traps())
    {
        if (active_)
            std::feholdexcept(&environment_);
    }
    ~no_traps_scope()
    {
        if (active_)
            std::fesetenv(&environment_);
    }
    no_traps_scope(no_traps_scope const&) = delete;
    no_traps_scope& operator=(no_traps_scope const&) = delete;

private:
    static bool has_traps() noexcept
    {
#if defined(__x86_64__)
        std::uint32_t vectors = 0; // SSE and x87 have separate masks; a set bit disables a trap
        std::uint16_t x87 = 0;
        asm volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(vectors), "=m"(x87));
        return (vectors & 0x1f80) != 0x1f80 || (x87 & 0x3f) != 0x3f;
#else
        std::uint64_t control = 0;
        asm volatile("mrs %0, fpcr" : "=r"(control));
        return (control & 0x9f00) != 0;
#endif
    }

    bool active_;
    std::fenv_t environment_;
};

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE
namespace detail {

template <class Work>
[[gnu::noinline]] void do_out_of_line(Work const& work)
{
    work();
}

// Calls work() in round-to-nearest-even with gradual underflow, whatever the caller's mode is. work() is not inlined,
// so that all of it stays between the two switches.
template <class Work>
void rounded_to_nearest(Work const& work)
{
    float_mode_scope const mode(subnormals::kept);
    do_out_of_line(work);
}

} // namespace detail
ADAMANT_END_NAMESPACE
