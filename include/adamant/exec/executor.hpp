// SPDX-License-Identifier: Apache-2.0
// Who does the work: the instruction set and the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <adamant/exec/slices.hpp>
#include <adamant/exec/team.hpp>
#include <adamant/kernel/isa.hpp>

ADAMANT_BEGIN_NAMESPACE

struct executor_options {
    isa tier = isa::automatic; // automatic: ADAMANT_ISA if set, else the best that the CPU has
    // 0: one for each core that this process may use, but no more than this rank's part of the CPU quota keeps busy, or
    // one for each PU in `pus` if that is not empty. 1: the calling thread alone; where `pus` or a binding is given, a
    // thread of the executor's own. More threads than PUs share the PUs.
    unsigned threads = 0;
    pu_set pus = {}; // see team_options; empty: the cores that this process may use, one PU of each first
    binding bind = binding::automatic; // of the executor's own threads
    // With fewer elements than this for each thread, fewer threads are used: waking one costs about what it saves.
    std::size_t min_slice_elems = 16384;
    // The two settings that a tuner may change; see tune/core_tuning.hpp: the most elements that a thread takes at once
    // (rounded down to a multiple of 64, at least 4096), and how far ahead a step prefetches.
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = default_prefetch_bytes();
};

// The instruction set and the threads that do the work: chosen once, at construction, and reported. No choice changes
// any bit of a result. Cheap to copy: copies share the threads, which end with the last copy. Every member function
// may be called from any thread, and from several at once; their work is done one after another. An executor with a
// team throws unavailable in a process forked from the one that made the team. Without a team (team() is null) the
// calling thread does the work, in any process.
class executor {
public:
    // Throws unavailable where the CPU lacks the instruction set, or threads cannot be made or bound; and
    // invalid_argument where ADAMANT_ISA is not the name of an instruction set.
    explicit executor(executor_options const& options = {});

    // On an existing team, with its threads, PUs and binding. Throws invalid_argument for null and for options that
    // contradict the team, and what the constructor above throws about instruction sets.
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems);
    executor(std::shared_ptr<adamant::team> team, executor_options const& options);

    // The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept;
    // The most threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept;
    // The CPU time that the cgroups of this process left it when this was made, shared by all ranks in them; 0: no
    // quota. More threads than that are used only where they were asked for.
    [[nodiscard]] double cpu_quota() const noexcept;
    // The team that does the work; null where the calling thread does it.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept;

    // How n elements are cut.
    [[nodiscard]] chunking chunks(std::size_t n) const noexcept;
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept;
    // How far ahead its steps prefetch.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept;

    // Whether the calling thread does n elements itself, because that is quicker than to hand them over.
    [[nodiscard]] bool works_itself(std::size_t n) const noexcept;

    // Calls work(slice) in parallel, for disjoint slices that together are all n elements, and returns when all are
    // done. Each thread begins with the same slices every time, and takes from others when it has finished its own. The
    // calling thread does small amounts of work itself. Returns how many threads the work was divided
    // between. Throws what work and team::submit() throw.
    template <class Work>
    ADAMANT_ALWAYS_INLINE unsigned for_each_slice(std::size_t n, Work const& work) const
    {
        chunking const cut = chunks(n);
        if (works_itself(n))
            work(slice{0, n});
        else
            team_->run(
                cut.chunks, [&](unsigned, std::size_t begin, std::size_t end) { work(cut.elements(begin, end)); },
                cut.threads);
        return cut.threads;
    }

    // Calls work(slice) in each thread for the elements that it begins with in for_each_slice(), so that memory is
    // first touched where it will be used. No thread takes from others. Throws as for_each_slice() does.
    template <class Work>
    ADAMANT_ALWAYS_INLINE void for_each_home(std::size_t n, Work const& work) const
    {
        chunking const cut = chunks(n);
        if (team_ == nullptr)
            work(slice{0, n});
        else
            team_->run([&](unsigned member) {
                if (member < cut.threads)
                    work(cut.home(member));
            });
    }

private:
    static void check_agrees(adamant::team const& with, executor_options const& options);

    isa isa_;
    std::size_t min_slice_elems_;
    std::size_t max_chunk_elems_;
    std::uint32_t prefetch_bytes_;
    double cpu_quota_;
    std::shared_ptr<adamant::team> team_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/executor.ipp>
#endif
