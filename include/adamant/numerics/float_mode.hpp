// SPDX-License-Identifier: Apache-2.0
// The processor's floating-point mode for the length of a scope.
#pragma once

#include <cstdint>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class subnormals : bool {
    kept,    // IEEE 754's gradual underflow: what the scalar oracle and the double-precision coefficients run in
    flushed, // inputs and results below 2^-126 become zero in hardware, at full speed: what the kernels run in
};

// Sets this thread's mode to round-to-nearest-even with every exception masked, and gives back the caller's whole mode
// at the end: rounding, FTZ, DAZ, exception masks and the sticky exception flags. Costs some 10 ns. The "memory"
// clobbers pin whatever the scope reads and writes in memory between the two switches, so keep data in memory across
// the scope's ends, not in locals alone.
class float_mode_scope {
public:
    explicit float_mode_scope(subnormals mode) noexcept
    {
#if defined(__x86_64__)
        std::uint32_t const wanted = mode == subnormals::flushed ? 0x9fc0u : 0x1f80u; // FTZ|DAZ|masks, or masks
        asm volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(control_) : "m"(wanted) : "memory");
#else
        std::uint64_t const wanted = mode == subnormals::flushed ? std::uint64_t{1} << 24 : 0; // FZ, IEEE half format
        asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, %2"
                     : "=&r"(control_), "=&r"(status_)
                     : "r"(wanted)
                     : "memory");
#endif
    }
    ~float_mode_scope()
    {
#if defined(__x86_64__)
        asm volatile("ldmxcsr %0" : : "m"(control_) : "memory");
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
};

namespace detail {

template <class Work>
[[gnu::noinline]] void do_out_of_line(Work const& work)
{
    work();
}

// Has work() done in that mode, whatever the caller's is. Not inlined, so that all of it stays between the two
// switches.
template <class Work>
void rounded_to_nearest(Work const& work)
{
    float_mode_scope const mode(subnormals::kept);
    do_out_of_line(work);
}

} // namespace detail

ADAMANT_END_NAMESPACE
