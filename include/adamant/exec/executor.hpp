// SPDX-License-Identifier: Apache-2.0
// Who does the work: the instruction set and the threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <adamant/core/error.hpp>
#include <adamant/exec/slices.hpp>
#include <adamant/isa/isa.hpp>

ADAMANT_BEGIN_NAMESPACE

struct executor_options {
    isa tier = isa::automatic; // automatic: ADAMANT_ISA if set, else the best that the CPU has
    unsigned threads = 0;      // 0: one per hardware thread that this process may use; OMP_NUM_THREADS is not obeyed
    // Below this many elements a thread, fewer threads are used: waking one costs about what it would save.
    std::size_t min_slice_elems = 16384;
};

// Chosen once, at construction, and reported; nothing about it changes any bit of a result. Copyable and cheap. Every
// member function may be called from any thread, and from several at once.
class executor {
public:
    // Throws unavailable where the CPU lacks the instruction set, where more threads are asked for than OMP_THREAD_LIMIT
    // allows or than a program compiled without OpenMP has, and invalid_argument where ADAMANT_ISA holds no name.
    explicit executor(executor_options const& options = {})
        : isa_(resolve_isa(options.tier)), threads_(resolve_threads(options.threads)),
          min_slice_elems_(std::max<std::size_t>(options.min_slice_elems, 1))
    {
    }

    // The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept { return isa_; }
    // The most threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept { return threads_; }

    // How many slices n elements are cut into.
    [[nodiscard]] unsigned slices(std::size_t n) const noexcept
    {
        std::size_t const granules = n / slice_granule_elems + 1; // no thread is woken for an empty slice
        return static_cast<unsigned>(std::clamp<std::size_t>(std::min(n / min_slice_elems_, granules), 1, threads_));
    }

    // Calls work(slice) for each slice of n elements, in parallel, and returns when all are done. work must not throw.
    // Returns the number of threads that took part. Where OpenMP grants fewer threads than asked (inside a parallel
    // region of the caller's, say), those do all the work.
    template <class Work>
    unsigned for_each_slice(std::size_t n, Work const& work) const noexcept
    {
        unsigned const parts = slices(n);
        if (parts == 1) {
            work(slice{0, n});
            return 1;
        }
        unsigned granted = 1;
#if defined(_OPENMP)
#pragma omp parallel num_threads(static_cast<int>(parts))
        {
            unsigned const team = static_cast<unsigned>(omp_get_num_threads());
            unsigned const member = static_cast<unsigned>(omp_get_thread_num());
            if (member == 0)
                granted = team;
            for (unsigned i = member; i < parts; i += team)
                work(slice_of(n, parts, i));
        }
#endif
        return granted;
    }

private:
    static unsigned resolve_threads(unsigned request)
    {
#if defined(_OPENMP)
        if (request == 0)
            return static_cast<unsigned>(std::clamp(omp_get_num_procs(), 1, omp_get_thread_limit()));
        if (request > static_cast<unsigned>(omp_get_thread_limit()))
            throw unavailable("adamant: " + std::to_string(request) + " threads are asked for, but OpenMP allows " +
                              std::to_string(omp_get_thread_limit()) + "; raise OMP_THREAD_LIMIT or ask for fewer");
        return request;
#else
        if (request > 1)
            throw unavailable("adamant: " + std::to_string(request) +
                              " threads are asked for, but this program was compiled without OpenMP; add -fopenmp");
        return 1;
#endif
    }

    isa isa_;
    unsigned threads_;
    std::size_t min_slice_elems_;
};

ADAMANT_END_NAMESPACE
