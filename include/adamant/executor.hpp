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

/// A range of elements; begin is a multiple of granule_elems.
struct slice {
    std::size_t begin; ///< first element
    std::size_t end;   ///< one past the last element
    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
};

/// Division of n elements into chunks of whole granules (granule_elems = 64 elements). Chunks differ by at most one
/// granule.
struct chunking {
    std::size_t n = 0;      ///< number of elements
    std::size_t chunks = 1; ///< number of chunks
    unsigned threads = 1;   ///< number of threads to use, from 1 to the number of chunks

    /// The elements of the chunks with numbers from `begin` to `end` - 1.
    [[nodiscard]] constexpr slice elements(std::size_t begin, std::size_t end) const noexcept
    {
        return {first_element(begin), end == chunks ? n : first_element(end)};
    }
    /// Elements that a thread starts with, the same in every call. The ranges of all threads are disjoint, in order and
    /// cover all elements. Their sizes differ by at most a granule, or by a chunk if the chunks cannot be divided
    /// evenly among the threads.
    [[nodiscard]] constexpr slice home(unsigned thread) const noexcept
    {
        std::size_t const most = chunks / threads; // chunks * thread could overflow
        std::size_t const longer = chunks % threads;
        std::size_t const begin = thread * most + std::min<std::size_t>(thread, longer);
        return elements(begin, begin + most + (thread < longer));
    }

private:
    [[nodiscard]] constexpr std::size_t first_element(std::size_t chunk) const noexcept
    {
        std::size_t const granules = n / granule_elems + (n % granule_elems != 0);
        // chunk * granules / chunks, without a product that overflows: there are fewer than 2^32 chunks.
        return (granules / chunks * chunk + granules % chunks * chunk / chunks) * granule_elems;
    }
};

/// Default maximum of elements in a chunk. With larger chunks, the other threads would wait longer for the thread with
/// the last chunk.
inline constexpr std::size_t default_max_chunk_elems = 65536;
/// Smallest value that max_chunk_elems may have. A small n is still divided into smaller chunks.
inline constexpr std::size_t min_chunk_elems = 4096;
/// Largest min_slice_elems that an executor chooses for two threads (see executor_options).
inline constexpr std::size_t max_min_slice_elems = 16384;

/// Divides n elements among up to `threads` threads.
///
/// - Each thread gets at least min_slice_elems elements; min_slice_elems is at least 1.
/// - Each thread gets at least about sixteen chunks, so that others can steal from a delayed thread, unless chunks
///   would have fewer than `smallest` elements.
/// - All threads get the same number of chunks, because a thread with one more would finish later.
/// - Chunks have at most max(max_chunk_elems, smallest) elements.
/// - Chunks have at least about `smallest` elements, so that taking one costs at most a hundredth of the work on it.
///   A thread that gets fewer than `smallest` elements in total has one or two chunks.
[[nodiscard]] constexpr chunking chunks_of(std::size_t n, unsigned threads, std::size_t min_slice_elems,
                                           std::size_t max_chunk_elems = default_max_chunk_elems,
                                           std::size_t smallest = min_chunk_elems) noexcept
{
    std::size_t const largest = std::max(max_chunk_elems, smallest);
    std::size_t const granules = n / granule_elems + (n % granule_elems != 0);
    std::size_t const useful = std::clamp<std::size_t>(std::min(n / min_slice_elems, granules), 1, threads);
    std::size_t const chunk_elems = std::clamp(n / useful / 16, std::min(smallest, n / useful), largest);
    std::size_t const chunk_granules =
        std::max(std::max<std::size_t>(chunk_elems / granule_elems, 1), n / 0xff000000 / granule_elems + 1);
    std::size_t const least = std::max<std::size_t>(granules / chunk_granules + (granules % chunk_granules != 0), 1);
    std::size_t const used = std::min(useful, least);
    std::size_t const even = (least + used - 1) / used * used;
    return {n, even <= granules ? even : least, static_cast<unsigned>(used)};
}

/// Bytes of memory that a step in float32 moves for each element.
inline constexpr std::size_t step_elem_bytes = 28;

/// Options of an executor.
struct executor_options {
    isa tier = isa::automatic; ///< automatic: ADAMANT_ISA if set, else the best that the CPU has
    /// Number of threads. 0: one for each PU in `pus`; if that is empty, one for each core that this process may use,
    /// within this rank's part of the CPU quota. 1: the calling thread, or a bound thread if `pus` or a binding is
    /// given. If there are more threads than PUs, threads share PUs.
    unsigned threads = 0;
    /// See team_options. Empty: PUs of this process. The first PU of every core comes before the second PU of any core.
    pu_set pus = {};
    binding bind = binding::automatic; ///< whether the threads must be bound
    /// Minimum number of elements for each thread in a float32 step. With less work, fewer threads are used. Work that
    /// moves fewer bytes per element needs more elements. 0: the executor chooses. For two threads it
    /// chooses a number from 4096 to 16384, depending on the cost of a hand-over (team::hand_over()); for more threads,
    /// 4096. A call then uses the number of threads that finishes it soonest.
    std::size_t min_slice_elems = 0;
    /// Maximum number of elements in a chunk (rounded down to a multiple of 64, at least 4096); tune_cores() tries
    /// other values.
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = default_prefetch_bytes(); ///< see default_prefetch_bytes()
};

/// The instruction set and the threads that do the work: chosen at construction, and reported. No choice changes any
/// bit of a result. Cheap to copy: copies share the threads, which end with the last copy.
///
/// Thread safety: call every member function from any thread, also concurrently. The team does the work of concurrent
/// calls one after another; work that a calling thread does itself runs beside it. In a forked child process calls that
/// need the team throw `unavailable`. Calls that need none still work there: small ones, and all calls of an executor
/// without a team (team() is null).
class executor {
public:
    /// Creates the threads.
    /// @throws unavailable if the CPU lacks the instruction set, or threads cannot be created or bound;
    /// invalid_argument if ADAMANT_ISA does not name an instruction set
    explicit executor(executor_options const& options = {});

    /// Uses an existing team with its threads, PUs and binding.
    /// @throws invalid_argument for null and for options that contradict the team; otherwise as the constructor above
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems);
    /// Uses an existing team with these options.
    executor(std::shared_ptr<adamant::team> team, executor_options const& options);

    /// The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept;
    /// Maximum number of threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept;
    /// CPU quota of this process's cgroups, in CPUs, read once by the constructor. All ranks in these cgroups share it.
    /// 0: no quota. The executor may exceed it if you set `threads` or `pus` or pass a team, or if it is below one CPU
    /// for each rank.
    [[nodiscard]] double cpu_quota() const noexcept;
    /// The team; null if the calling thread does the work.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept;

    /// Returns how n elements are divided if the work moves elem_bytes bytes of memory for each.
    [[nodiscard]] chunking chunks(std::size_t n, std::size_t elem_bytes = step_elem_bytes) const noexcept;
    /// See executor_options::max_chunk_elems.
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept;
    /// How far ahead steps prefetch.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept;

    /// Whether the calling thread works on n elements itself: there is no team, or handing the work to the team would
    /// take longer.
    [[nodiscard]] bool works_itself(std::size_t n, std::size_t elem_bytes = step_elem_bytes) const noexcept;

    /// Calls work(slice) in parallel for disjoint slices that together are all n elements, and returns when all are
    /// done. Each thread starts with the same slices every time and then steals from others. If the work is small, the
    /// calling thread does all of it. What is small depends on elem_bytes, the bytes of memory that the work moves for
    /// each element. Returns the number of threads. Throws what work and team::submit() throw.
    template <class Work>
    ADAMANT_ALWAYS_INLINE unsigned for_each_slice(std::size_t n, Work const& work,
                                                  std::size_t elem_bytes = step_elem_bytes) const
    {
        if (works_itself(n, elem_bytes)) {
            work(slice{0, n});
            return 1;
        }
        chunking const cut = chunks(n, elem_bytes);
        team_->run(
            cut.chunks, [&](unsigned, std::size_t begin, std::size_t end) { work(cut.elements(begin, end)); },
            cut.threads);
        return cut.threads;
    }

    /// Calls work(slice) in each thread for the elements that this thread starts with in for_each_slice(), so that
    /// memory is first touched by the thread that uses it. No stealing. Throws as for_each_slice().
    template <class Work>
    ADAMANT_ALWAYS_INLINE void for_each_owned_slice(std::size_t n, Work const& work) const
    {
        chunking const cut = chunks(n);
        if (team_ == nullptr)
            work(slice{0, n});
        else
            // run() may let the caller work in place of a member, and the caller may move to another PU.
            team_
                ->submit([&](unsigned member) {
                    if (member < cut.threads)
                        work(cut.home(member));
                })
                .wait();
    }

private:
    static void check_agrees(adamant::team const& team, executor_options const& options);
    void set_slices(std::size_t min_slice_elems);
    isa isa_;
    // Minimum of elements for each thread of a float32 step: with two threads, and with more.
    std::size_t least_elems_of_two_ = 0;
    std::size_t least_elems_ = 0;
    hand_over_cost hand_over_; // none if the caller chose min_slice_elems
    std::size_t max_chunk_elems_;
    std::uint32_t prefetch_bytes_;
    double cpu_quota_;
    std::shared_ptr<adamant::team> team_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/executor.ipp>
#endif
