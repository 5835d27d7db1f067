// SPDX-License-Identifier: Apache-2.0
// Who does the work: the instruction set and the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <adamant/exec/slices.hpp>
#include <adamant/exec/team.hpp>
#include <adamant/isa/isa.hpp>

ADAMANT_BEGIN_NAMESPACE

struct executor_options {
    isa tier = isa::automatic; // automatic: ADAMANT_ISA if set, else the best that the CPU has
    // 0: one per core that this process may use, or per PU in `pus` if that is not empty. 1: the calling thread alone,
    // unless `pus` or a binding that is asked for says where: then it is a thread of the executor's own. More than
    // there are PUs share them.
    unsigned threads = 0;
    pu_set pus = {}; // where, see team_options; empty: the cores that this process may use, one PU of each first
    binding bind = binding::automatic; // of the executor's own threads
    // Below this many elements a thread, fewer threads are used: waking one costs about what it would save.
    std::size_t min_slice_elems = 16384;
    // The two that a tuner may change; see tune/core_tuning.hpp. No thread takes more elements at once (rounded down to
    // a multiple of 64, at least 4096), and how far ahead a step asks for memory.
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = kernel::default_prefetch_bytes;
};

// Chosen once, at construction, and reported; nothing about it changes any bit of a result. Copyable and cheap to copy:
// copies share the threads, which end with the last. Every member function may be called from any thread, and from
// several at once; their work is done one after another. It is not to be used in a process that was forked from its own
// (an error says so), unless the calling thread does the work: team() is null then.
class executor {
public:
    // Throws unavailable where the CPU lacks the instruction set, or threads cannot be had or bound; and
    // invalid_argument where ADAMANT_ISA holds no name.
    explicit executor(executor_options const& options = {});

    // On a team that is there already, which has its own threads, PUs and binding: options may leave these out, and
    // are refused where they say otherwise. Throws what the other one throws about instruction sets, and
    // invalid_argument for null and for such options.
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems);
    executor(std::shared_ptr<adamant::team> team, executor_options const& options);

    // The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept;
    // The most threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept;
    // The team that does the work; null where the calling thread does it.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept;

    // How n elements are cut.
    [[nodiscard]] chunking chunks(std::size_t n) const noexcept;
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept;
    // How far ahead its steps ask for memory.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept;

    // Calls work(slice) for slices that are disjoint and together n elements, in parallel, and returns when all are
    // done. Each thread begins with the same slices every time, and takes from others when it is through. Little work
    // is done by the calling thread, as that is quicker. Returns how many threads the work was divided between. Throws
    // what work throws, and what team::submit() throws.
    template <class Work>
    ADAMANT_ALWAYS_INLINE unsigned for_each_slice(std::size_t n, Work const& work) const
    {
        chunking const cut = chunks(n);
        if (is_little(n))
            work(slice{0, n});
        else
            team_->run(
                cut.chunks, [&](unsigned, std::size_t begin, std::size_t end) { work(cut.elements(begin, end)); },
                cut.threads);
        return cut.threads;
    }

    // Calls work(slice) in each thread for the elements that it begins with in for_each_slice(): to touch memory first
    // where it will be used. Nobody takes from others. Throws as for_each_slice() does.
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

    // Quicker done than handed over.
    [[nodiscard]] bool is_little(std::size_t n) const noexcept;

    isa isa_;
    std::size_t min_slice_elems_;
    std::size_t max_chunk_elems_;
    std::uint32_t prefetch_bytes_;
    std::shared_ptr<adamant::team> team_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/executor.ipp>
#endif
