// SPDX-License-Identifier: Apache-2.0
// An executor: the instruction set and the threads that do the work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <adamant/isa.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/core/granule.hpp>

// How a range of elements is cut into chunks that threads take. Pure arithmetic.

ADAMANT_BEGIN_NAMESPACE

/// Elements from begin, a multiple of granule_elems, to end.
struct slice {
    std::size_t begin; ///< first element
    std::size_t end;   ///< one past the last element
    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

/// n elements as chunks of one size, in order; the last may be shorter.
struct chunking {
    std::size_t n = 0;                       ///< number of elements
    std::size_t chunk_elems = granule_elems; ///< a multiple of granule_elems
    std::size_t chunks = 1;                  ///< number of chunks
    unsigned threads = 1;                    ///< worth dividing them between; from 1 to the number of chunks

    /// The elements of chunks begin to end - 1.
    [[nodiscard]] constexpr slice elements(std::size_t begin, std::size_t end) const noexcept
    {
        return {begin * chunk_elems, end == chunks ? n : end * chunk_elems};
    }
    /// The elements that thread number `thread` begins with, every time. The ranges of all threads are in order and
    /// disjoint, together are all elements, and differ in size by at most a chunk.
    [[nodiscard]] constexpr slice home(unsigned thread) const noexcept
    {
        std::size_t const most = chunks / threads; // no product, which could overflow
        std::size_t const longer = chunks % threads;
        std::size_t const begin = thread * most + std::min<std::size_t>(thread, longer);
        return elements(begin, begin + most + (thread < longer));
    }
};

/// By default no thread takes more elements than this in one piece; otherwise the others would wait for it at the end.
inline constexpr std::size_t default_max_chunk_elems = 65536;
/// The least value of that limit. Chunks are shorter where there is little work.
inline constexpr std::size_t min_chunk_elems = 4096;

/// Cuts n elements for up to `threads` threads, so that each thread gets at least min_slice_elems (at least
/// 1). A thread has some sixteen chunks, so that others can take some where it is delayed. No chunk is so small that
/// taking it costs more than a hundredth of working on it, and none has more than max_chunk_elems.
[[nodiscard]] constexpr chunking chunks_of(std::size_t n, unsigned threads, std::size_t min_slice_elems,
                                           std::size_t max_chunk_elems = default_max_chunk_elems) noexcept
{
    constexpr std::size_t smallest = min_chunk_elems;
    std::size_t const largest = std::max(max_chunk_elems, smallest);
    std::size_t const granules = n / granule_elems + (n % granule_elems != 0);
    std::size_t const useful = std::clamp<std::size_t>(std::min(n / min_slice_elems, granules), 1, threads);
    std::size_t chunk = std::clamp(n / useful / 16, std::min(smallest, n / useful), largest);
    chunk = std::max(chunk / granule_elems * granule_elems, granule_elems);
    chunk = std::max(chunk, (n / 0xffffff00 / granule_elems + 1) * granule_elems); // fewer than 2^32 chunks
    std::size_t const chunks = std::max<std::size_t>(n / chunk + (n % chunk != 0), 1);
    return {n, chunk, chunks, static_cast<unsigned>(std::min(useful, chunks))};
}

// Who does the work: the instruction set and the threads.

/// Options of an executor.
struct executor_options {
    isa tier = isa::automatic; ///< automatic: ADAMANT_ISA if set, else the best that the CPU has
    /// 0: one for each core that this process may use, but no more than this rank's part of the CPU quota keeps busy,
    /// or one for each PU in `pus` if that is not empty. 1: the calling thread alone; where `pus` or a binding is
    /// given, a thread of the executor's own. More threads than PUs share the PUs.
    unsigned threads = 0;
    pu_set pus = {}; ///< see team_options; empty: the cores that this process may use, one PU of each first
    binding bind = binding::automatic; ///< of the executor's own threads
    /// With fewer elements than this for each thread, fewer threads are used: waking one costs about what it saves.
    std::size_t min_slice_elems = 16384;
    /// The two settings that a tuner may change; see tune.hpp: the most elements that a thread takes in one piece
    /// (rounded down to a multiple of 64, at least 4096), and how far ahead a step prefetches.
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = default_prefetch_bytes(); ///< see default_prefetch_bytes()
};

/// The instruction set and the threads that do the work: chosen once, at construction, and reported. No choice changes
/// any bit of a result. Cheap to copy: copies share the threads, which end with the last copy. Every member function
/// may be called from any thread, and from several concurrently; their work is done one after another. An executor with
/// a team throws unavailable in a process forked from the one that made the team. Without a team (team() is null) the
/// calling thread does the work, in any process.
class executor {
public:
    /// Throws unavailable where the CPU lacks the instruction set, or threads cannot be made or bound; and
    /// invalid_argument where ADAMANT_ISA is not the name of an instruction set.
    explicit executor(executor_options const& options = {});

    /// On an existing team, with its threads, PUs and binding. Throws invalid_argument for null and for options that
    /// contradict the team, and what the constructor above throws about instruction sets.
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems);
    /// The same.
    executor(std::shared_ptr<adamant::team> team, executor_options const& options);

    /// The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept;
    /// The most threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept;
    /// The CPU time that the cgroups of this process left it when this was made, shared by all ranks in them; 0: no
    /// quota. More threads than that are used only where they were asked for.
    [[nodiscard]] double cpu_quota() const noexcept;
    /// The team that does the work; null where the calling thread does it.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept;

    /// How n elements are cut.
    [[nodiscard]] chunking chunks(std::size_t n) const noexcept;
    /// See executor_options::max_chunk_elems.
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept;
    /// How far ahead its steps prefetch.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept;

    /// Whether the calling thread does n elements itself, because that is quicker than to hand them over.
    [[nodiscard]] bool works_itself(std::size_t n) const noexcept;

    /// Calls work(slice) in parallel, for disjoint slices that together are all n elements, and returns when all are
    /// done. Each thread begins with the same slices every time, and takes from others when it has finished its own.
    /// The calling thread does small amounts of work itself. Returns how many threads the work was divided between.
    /// Throws what work and team::submit() throw.
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

    /// Calls work(slice) in each thread for the elements that it begins with in for_each_slice(), so that memory is
    /// first touched where it will be used. No thread takes from others. Throws as for_each_slice() does.
    template <class Work>
    ADAMANT_ALWAYS_INLINE void for_each_owned_slice(std::size_t n, Work const& work) const
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
#include <adamant/detail/exec/executor.ipp>
#endif
