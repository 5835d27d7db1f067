// SPDX-License-Identifier: Apache-2.0
// Who does the work: the instruction set and the threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <adamant/core/error.hpp>
#include <adamant/exec/slices.hpp>
#include <adamant/exec/team.hpp>
#include <adamant/isa/isa.hpp>
#include <adamant/kernel/step_pointers.hpp>
#include <adamant/topology/allowed.hpp>

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
    explicit executor(executor_options const& options = {})
        : isa_(resolve_isa(options.tier)), min_slice_elems_(std::max<std::size_t>(options.min_slice_elems, 1)),
          max_chunk_elems_(std::max(options.max_chunk_elems, min_chunk_elems)), prefetch_bytes_(options.prefetch_bytes)
    {
        unsigned threads = options.threads;
#if !defined(_OPENMP)
        if (std::size_t const asked = threads != 0 ? threads : options.pus.size(); asked > 1)
            throw unavailable("adamant: " + std::to_string(asked) +
                              " threads are asked for, but this program was compiled without OpenMP; add -fopenmp");
        threads = 1;
#endif
        bool const has_place =
            !options.pus.empty() || options.bind == binding::required || options.bind == binding::if_possible;
        if (threads == 1 && !has_place)
            return;
        pu_set const pus = options.pus.empty() ? detail::pus_for(threads) : options.pus;
        if (threads != 0 || pus.size() > 1 || has_place)
            team_ = std::make_shared<adamant::team>(team_options{.pus = pus, .threads = threads, .bind = options.bind});
    }

    // On a team that is there already, which has its own threads, PUs and binding: options may leave these out, and
    // are refused where they say otherwise. Throws what the other one throws about instruction sets, and
    // invalid_argument for null and for such options.
    explicit executor(std::shared_ptr<adamant::team> team, isa tier = isa::automatic,
                      std::size_t min_slice_elems = executor_options{}.min_slice_elems)
        : executor(std::move(team), executor_options{.tier = tier, .min_slice_elems = min_slice_elems})
    {
    }
    executor(std::shared_ptr<adamant::team> team, executor_options const& options)
        : isa_(resolve_isa(options.tier)), min_slice_elems_(std::max<std::size_t>(options.min_slice_elems, 1)),
          max_chunk_elems_(std::max(options.max_chunk_elems, min_chunk_elems)), prefetch_bytes_(options.prefetch_bytes),
          team_(std::move(team))
    {
        if (team_ == nullptr)
            throw invalid_argument("adamant: an executor is to work on a team, but there is none (a null pointer)");
        check_agrees(*team_, options);
    }

    // The instruction set in use, never automatic.
    [[nodiscard]] isa tier() const noexcept
    {
        return isa_;
    }
    // The most threads that a call uses.
    [[nodiscard]] unsigned threads() const noexcept
    {
        return team_ == nullptr ? 1 : team_->size();
    }
    // The team that does the work; null where the calling thread does it.
    [[nodiscard]] std::shared_ptr<adamant::team> const& team() const noexcept
    {
        return team_;
    }

    // How n elements are cut.
    [[nodiscard]] chunking chunks(std::size_t n) const noexcept
    {
        return chunks_of(n, threads(), min_slice_elems_, max_chunk_elems_);
    }
    [[nodiscard]] std::size_t max_chunk_elems() const noexcept
    {
        return max_chunk_elems_;
    }
    // How far ahead its steps ask for memory.
    [[nodiscard]] std::uint32_t prefetch_bytes() const noexcept
    {
        return prefetch_bytes_;
    }

    // Calls work(slice) for slices that are disjoint and together n elements, in parallel, and returns when all are
    // done. Each thread begins with the same slices every time, and takes from others when it is through. Little work
    // is done by the calling thread, as that is quicker. Returns how many threads the work was divided between. Throws
    // what work throws, and what team::submit() throws.
    template <class Work>
    unsigned for_each_slice(std::size_t n, Work const& work) const
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
    void for_each_home(std::size_t n, Work const& work) const
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
    static void check_agrees(adamant::team const& with, executor_options const& options)
    {
        auto const check = [](bool agrees, std::string const& asked, std::string const& found) {
            if (!agrees)
                throw invalid_argument("adamant: an executor is asked for with " + asked + ", but the team has " +
                                       found + "; leave that out, or make a team that has it");
        };
        auto const where = [](pu_set const& pus) { return pus.empty() ? "no PUs" : "PUs " + to_list(pus); };
        auto const bound = [&](pu_set const& pus) {
            return pus.empty() ? std::string("threads that are not bound") : "threads that are bound to " + where(pus);
        };
        check(options.threads == 0 || options.threads == with.size(), std::to_string(options.threads) + " threads",
              std::to_string(with.size()));
        check(options.pus.empty() || options.pus == with.options().pus, where(options.pus), where(with.options().pus));
        check(options.bind != binding::required || with.bound(), "binding::required", bound({}));
        check(options.bind != binding::if_possible || with.options().bind != binding::none, "binding::if_possible",
              bound({}));
        check(options.bind != binding::none || with.options().bind == binding::none, "binding::none",
              bound(with.bound_to()));
    }

    // Quicker done than handed over.
    [[nodiscard]] bool is_little(std::size_t n) const noexcept
    {
        return team_ == nullptr || n < 2 * min_slice_elems_;
    }

    isa isa_;
    std::size_t min_slice_elems_;
    std::size_t max_chunk_elems_;
    std::uint32_t prefetch_bytes_;
    std::shared_ptr<adamant::team> team_;
};

ADAMANT_END_NAMESPACE
