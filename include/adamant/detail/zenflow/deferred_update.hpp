// SPDX-License-Identifier: Apache-2.0
// What is done in the background by idle workers: gradients are accumulated, and the deferred gradients in a window is
// stepped. Both in tiles, planned before anything is written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Tiles that anyone may take, once each. From any thread, also while others are given: one that looks for a tile finds
// all of an old one's, or all of a new one's.
template <class Tile>
class tiled_work {
public:
    // After all before them.
    void begin(std::vector<Tile> tiles) noexcept
    {
        std::lock_guard const lock(mutex_);
        tiles_ = std::move(tiles);
        next_ = 0;
    }
    [[nodiscard]] std::size_t size() const noexcept
    {
        std::lock_guard const lock(mutex_);
        return tiles_.size();
    }
    [[nodiscard]] bool is_done() const noexcept
    {
        std::lock_guard const lock(mutex_);
        return next_ == tiles_.size() && running_ == 0;
    }
    // Does one tile that has not begun. Returns false if there is none.
    template <class Work>
    bool do_next(Work const& work) noexcept
    {
        std::optional<Tile> const taken = take();
        if (!taken)
            return false;
        auto const start = std::chrono::steady_clock::now();
        work(*taken);
        auto const busy = std::chrono::steady_clock::now() - start;
        std::lock_guard const lock(mutex_);
        busy_ += busy;
        --running_;
        return true;
    }
    // How long all threads together have worked on tiles, since it was last asked.
    [[nodiscard]] double take_busy_s() noexcept
    {
        std::lock_guard const lock(mutex_);
        return std::chrono::duration<double>(std::exchange(busy_, {})).count();
    }

private:
    std::optional<Tile> take() noexcept
    {
        std::lock_guard const lock(mutex_);
        if (next_ == tiles_.size())
            return std::nullopt;
        ++running_;
        return tiles_[next_++];
    }

    mutable std::mutex mutex_; // a tile is work for far longer than it is held
    std::vector<Tile> tiles_;
    std::size_t next_ = 0;
    std::size_t running_ = 0;
    std::chrono::steady_clock::duration busy_{};
};

// The gradients of one step are accumulated.
struct sum_tile {
    zenflow_matrix const* matrix;
    std::size_t begin, end; // rows
    group_step const* by;
    bool first;
    float* sums;
};
using sum_work = tiled_work<sum_tile>;

// The deferred gradients of one matrix.
struct deferred_part {
    std::vector<std::uint8_t> columns;  // a flag for each column: whether it is stepped
    std::vector<coefficients> steps;    // for each count of updates,
    std::vector<std::uint32_t> step_of; // and which of them each column takes
    float const* sums = nullptr;        // null: nothing was accumulated
    float scale = 1;                    // of the sums
};

class deferred_update {
public:
    std::vector<deferred_part> parts; // of each matrix
    bool zero_nonfinite = false;
    // If not empty, is called with each matrix that is through, in the thread that has finished it. Must not throw.
    std::function<void(std::size_t)> is_through = {};

    [[nodiscard]] bool is_there() const noexcept { return is_there_; }
    [[nodiscard]] bool is_done() const noexcept { return work_.is_done(); }
    // For begin(), which allocates nothing: parts are as they will be then. No worker uses it.
    void prepare(std::vector<zenflow_matrix> const& of)
    {
        std::vector<tile> tiles;
        std::vector<std::atomic<std::size_t>> left(of.size());
        for (std::size_t m = 0; m < of.size(); ++m) {
            for (std::size_t strip = 0; strip < of[m].strips() && parts[m].sums != nullptr; ++strip)
                for (std::size_t at = 0; at < of[m].strip_parts(); ++at)
                    tiles.push_back({m, strip, at});
            left[m] = parts[m].sums == nullptr ? 0 : of[m].strips() * of[m].strip_parts();
        }
        tiles_ = std::move(tiles);
        left_ = std::move(left);
    }
    // Is to be done.
    void begin() noexcept
    {
        work_.begin(std::move(tiles_));
        is_there_ = true;
    }
    // Has been done elsewhere.
    void begin_done() noexcept
    {
        work_.begin({});
        is_there_ = true;
    }
    void forget() noexcept { is_there_ = false; }
    [[nodiscard]] double take_busy_s() noexcept { return work_.take_busy_s(); }
    [[nodiscard]] std::size_t tiles() const noexcept { return work_.size(); }
    [[nodiscard]] static constexpr std::size_t tile_elems() noexcept
    {
        return zenflow_matrix::strip_columns * zenflow_matrix::strip_rows;
    }
    bool do_next(std::vector<zenflow_matrix> const& of, kernel::memory_access how) noexcept
    {
        return work_.do_next([&](tile const& what) {
            do_tile(of, what, parts[what.matrix].columns, how);
            if (--left_[what.matrix] == 0 && is_through)
                is_through(what.matrix);
        });
    }
    // Steps other columns of one matrix, now.
    void do_columns(executor const& cpu, std::vector<zenflow_matrix> const& of, std::size_t matrix,
                    std::vector<std::uint8_t> const& columns, kernel::memory_access how) const
    {
        zenflow_matrix const& m = of[matrix];
        if (parts[matrix].sums == nullptr)
            return;
        std::size_t const parts_of_strip = m.strip_parts();
        std::size_t const count = m.strips() * parts_of_strip;
        for_each_part(cpu, count, count * tile_elems(), [&](std::size_t i) {
            do_tile(of, {matrix, i / parts_of_strip, i % parts_of_strip}, columns, how);
        });
    }

private:
    struct tile {
        std::size_t matrix, strip, at;
    };
    void do_tile(std::vector<zenflow_matrix> const& of, tile const& what, std::vector<std::uint8_t> const& columns,
                 kernel::memory_access how) const noexcept
    {
        deferred_part const& part = parts[what.matrix];
        of[what.matrix].step_strip(what.strip, what.at, columns, part.sums, part.scale, zero_nonfinite, part.steps,
                                   part.step_of, how);
    }

    std::vector<tile> tiles_; // until it begins
    tiled_work<tile> work_;
    std::vector<std::atomic<std::size_t>> left_; // tiles of each matrix
    bool is_there_ = false;
};

// Does that in a team's threads, while these have nothing else to do: sums first, then the step.
class deferred_worker {
public:
    // when_summed: is called, in any thread and perhaps more than once, when all gradients of a step have been added
    // up. Must not throw.
    deferred_worker(executor const& cpu, std::function<void()> when_summed)
        : cpu_(cpu), team_(cpu.team()), when_summed_(std::move(when_summed))
    {
    }
    deferred_worker(deferred_worker const&) = delete;
    deferred_worker& operator=(deferred_worker const&) = delete;
    ~deferred_worker() { rest(); }

    // Work in the background needs a thread. Throws what the team's constructor does.
    void have_team()
    {
        if (team_ == nullptr)
            team_ = std::make_shared<adamant::team>(team_options{.threads = 1, .bind = binding::none});
    }
    // In a forked child process, throws unavailable. Whether work was under way at the fork; its
    // locks may be held forever.
    void check_process() const
    {
        if (team_ != nullptr)
            team_->check_process();
    }
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return team_ != nullptr && !team_->in_this_process() && drain_ != nullptr && !drain_->done();
    }
    [[nodiscard]] bool in_this_process() const noexcept { return team_ == nullptr || team_->in_this_process(); }
    // Goes on with what there is; step: null, or one to go on with when sums are done. Returns immediately. Where
    // memory is short nothing goes on, until finish().
    void go_on(sum_work& sums, deferred_update* step, std::vector<zenflow_matrix> const& of) noexcept
    {
        if (step != nullptr && (!step->is_there() || step->is_done()))
            step = nullptr;
        if (sums.is_done() && step == nullptr)
            return;
        try {
            // The drain before it, which may know of less, leaves as soon as it sees that this one waits.
            drain_.reset(new submission<drain>(team_->submit(drain{this, &sums, step, &of})));
        } catch (std::bad_alloc const&) {
        }
    }
    // Returns when sums are done; and when the step is.
    void finish(sum_work& sums)
    {
        if (sums.is_done())
            return;
        rest();
        for_each_part(cpu_, sums.size(), sums.size() * 65536, [&](std::size_t) { (void)sums.do_next(add_up); });
        when_summed_();
    }
    void finish(sum_work& sums, deferred_update& step, std::vector<zenflow_matrix> const& of)
    {
        finish(sums);
        if (!step.is_there())
            return;
        rest();
        if (!step.is_done())
            for_each_part(cpu_, step.tiles(), step.tiles() * deferred_update::tile_elems(),
                          [&](std::size_t) { (void)step.do_next(of, access()); });
    }
    [[nodiscard]] kernel::memory_access access() const noexcept { return {false, cpu_.prefetch_bytes()}; }

private:
    static void add_up(sum_tile const& what) noexcept
    {
        what.matrix->add_up(what.begin, what.end, *what.by, what.first, what.sums);
    }
    // No other request waits for the team, so a drain does all work, and then no thread is at work any more.
    void rest() noexcept { drain_.reset(); }

    struct drain {
        deferred_worker const* worker;
        sum_work* sums;
        deferred_update* step; // may be null
        std::vector<zenflow_matrix> const* of;
        void operator()(unsigned) const noexcept
        {
            while (!worker->team_->others_wait()) {
                if (sums->do_next(add_up)) {
                    if (sums->is_done())
                        worker->when_summed_();
                    continue;
                }
                if (step == nullptr)
                    return;
                if (sums->is_done() && !step->do_next(*of, worker->access()))
                    return;
            }
        }
    };

    executor cpu_;
    std::shared_ptr<adamant::team> team_;
    std::function<void()> when_summed_;
    std::unique_ptr<submission<drain>> drain_; // last: it uses the others
};

} // namespace detail
ADAMANT_END_NAMESPACE
