// SPDX-License-Identifier: Apache-2.0
// The executor: the instruction set and the threads that run steps, and how work is divided between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <adamant/isa.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/core/granule.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Default of executor_options::max_chunk_elems. With larger chunks, threads would wait longer for the last one.
inline constexpr std::size_t default_max_chunk_elems = 65536;
/// Smallest value of executor_options::max_chunk_elems. Chunks are shorter if there is little work.
inline constexpr std::size_t min_chunk_elems = 4096;

/// Options of an executor.
struct executor_options {
    isa tier = isa::automatic; ///< instruction set; automatic: ADAMANT_ISA if set, else the best available
    /// Number of threads; 0: one for each PU in `pus`, or if `pus` is empty, one for each usable core.
    ///
    /// If `pus` is empty, 0 also limits the number to what this rank's share of the CPU quota keeps busy. 1 uses the
    /// calling thread or, with `pus` or a binding, one worker thread. More threads than PUs share the PUs.
    unsigned threads = 0;
    /// PUs of the threads, see team_options; empty: those of the cores that this process may use, one per core first.
    pu_set pus = {};
    binding bind = binding::automatic; ///< binding of the executor's threads
    /// Fewest elements for each thread; smaller inputs use fewer threads, because waking one costs what it saves.
    std::size_t min_slice_elems = 16384;
    /// Most elements that a thread takes at a time; rounded down to a multiple of 64, at least 4096. May be tuned.
    std::size_t max_chunk_elems = default_max_chunk_elems;
    /// Prefetch distance of a step in bytes. May be tuned; see tune.hpp.
    std::uint32_t prefetch_bytes = default_prefetch_bytes();
};

/// The elements [begin, end) of a range.
struct slice {
    std::size_t begin; ///< first element; a multiple of granule_elems
    std::size_t end;   ///< one past the last element
    /// Returns the number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

/// A division of n elements into chunks of equal size; the last may be shorter.
struct chunking {
    std::size_t n = 0;                       ///< number of elements
    std::size_t chunk_elems = granule_elems; ///< elements of a chunk; a multiple of granule_elems
    std::size_t chunks = 1;                  ///< number of chunks
    unsigned threads = 1;                    ///< number of threads to use, from 1 to the number of chunks

    /// Returns the elements of chunks [begin, end).
    [[nodiscard]] constexpr slice elements(std::size_t begin, std::size_t end) const noexcept
    {
        return {begin * chunk_elems, end == chunks ? n : end * chunk_elems};
    }
    /// Returns the elements that the given thread starts with in every call.
    ///
    /// The ranges of all threads partition the elements in order and differ in size by at most one chunk.
    [[nodiscard]] constexpr slice home(unsigned thread) const noexcept
    {
        std::size_t const quotient = chunks / threads; // chunks * thread / threads could overflow
        std::size_t const remainder = chunks % threads;
        std::size_t const begin = thread * quotient + std::min<std::size_t>(thread, remainder);
        return elements(begin, begin + quotient + (thread < remainder));
    }
};

/// The instruction set and the threads that run steps, chosen at construction. No choice changes any bit of a result.
///
/// Cheap to copy: copies share the threads, which end with the last copy. All member functions are thread-safe;
/// concurrent calls run one after another. Without a team (team() is null) the calling thread does the work, in any
/// process. An executor with a team throws unavailable in a forked child process.
class executor {
public:
    /// Selects the instruction set and starts the threads.
    /// @throws unavailable  if the CPU lacks the instruction set, or threads cannot be created or bound.
    /// @throws invalid_argument  if ADAMANT_ISA is not the name of an instruction set, and as team's constructor does.
    explicit executor(executor_options const& options = {});

    /// Uses an existing team, with its threads, PUs and binding.
    /// @throws unavailable  if the CPU lacks the instruction set.
    /// @throws invalid_argument  if team is null or ADAMANT_ISA is not the name of an instruction set.
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems);
    /// Uses an existing team, with its threads, PUs and binding.
    /// @throws unavailable  if the CPU lacks the instruction set.
    /// @throws invalid_argument  if team is null, if the options contradict it, or if ADAMANT_ISA is not the name of an
    ///     instruction set.
    executor(std::shared_ptr<adamant::team> team, executor_options const& options);

    /// Returns the instruction set in use; never `automatic`.
    [[nodiscard]] isa tier() const noexcept;
    /// Returns the largest number of threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept;
    /// Returns the CPU quota of this process's cgroups at construction, in CPUs; 0: no quota.
    ///
    /// All ranks in the cgroups share it. Only an explicit number of threads exceeds it.
    [[nodiscard]] double cpu_quota() const noexcept;
    /// Returns the team; null if the calling thread does the work.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept;

    /// Returns the division of n elements into chunks.
    [[nodiscard]] chunking chunks(std::size_t n) const noexcept;
    /// Returns the most elements that a thread takes at a time.
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept;
    /// Returns the prefetch distance of a step in bytes.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept;

    /// Returns whether the calling thread processes n elements itself, because that is faster than the handover.
    [[nodiscard]] bool works_itself(std::size_t n) const noexcept;

    /// Calls work(slice) in parallel for disjoint slices of n elements. Returns when all are done.
    ///
    /// Each thread starts with the same slices every time, and steals from others when it has finished them. The
    /// calling thread processes small inputs itself.
    /// @return the number of threads that the work was divided between.
    /// @throws ...  what work and team::submit() throw.
    template <class Work>
    ADAMANT_ALWAYS_INLINE unsigned for_each_slice(std::size_t n, Work const& work) const
    {
        chunking const division = chunks(n);
        if (works_itself(n))
            work(slice{0, n});
        else
            team_->run(
                division.chunks,
                [&](unsigned, std::size_t begin, std::size_t end) { work(division.elements(begin, end)); },
                division.threads);
        return division.threads;
    }

    /// Calls work(slice) in each thread for the elements that it starts with in for_each_slice(). No thread steals.
    ///
    /// Use it for first touch, so that memory is allocated near the thread that will use it.
    /// @throws ...  what work and team::submit() throw.
    template <class Work>
    ADAMANT_ALWAYS_INLINE void for_each_owned_slice(std::size_t n, Work const& work) const
    {
        chunking const division = chunks(n);
        if (team_ == nullptr)
            work(slice{0, n});
        else
            team_->run([&](unsigned member) {
                if (member < division.threads)
                    work(division.home(member));
            });
    }

private:
    static void check_agrees(adamant::team const& team, executor_options const& options);

    isa isa_;
    std::size_t min_slice_elems_;
    std::size_t max_chunk_elems_;
    std::uint32_t prefetch_bytes_;
    double cpu_quota_;
    std::shared_ptr<adamant::team> team_;
};

/// Divides n elements into chunks for up to `threads` threads.
///
/// A thread gets some sixteen chunks, so that others can steal from it when it is delayed. Chunks are large enough that
/// taking one costs at most 1% of processing it.
/// @param min_slice_elems  fewest elements worth waking a thread for; at least 1.
/// @param max_chunk_elems  most elements of a chunk.
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

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/executor.ipp>
#endif
