// SPDX-License-Identifier: Apache-2.0
// Background work on idle threads: accumulation of gradients, and the deferred update of a window. Both run in tiles
// that are planned before anything is written.
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
#include <adamant/detail/exec/background_team.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A thread-safe list of tiles, each handed out once. begin() may run concurrently with do_next(), which sees either the
// old list or the new one.
template <class Tile>
class tiled_work {
public:
    // Replaces the tiles. Requires is_done().
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
    // Takes the next tile and calls work(tile). Returns false if no tile is left.
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
    // Seconds that all threads together have worked on tiles since the last call.
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

    mutable std::mutex mutex_; // held far shorter than a tile's work takes
    std::vector<Tile> tiles_;
    std::size_t next_ = 0;
    std::size_t running_ = 0;
    std::chrono::steady_clock::duration busy_{};
};

// A tile of the accumulation of one step's gradients.
struct sum_tile {
    zenflow_matrix const* matrix;
    std::size_t begin, end; // rows
    group_step const* step;
    bool first;
    float* sums;
};
using sum_work = tiled_work<sum_tile>;

// The deferred update of one matrix.
struct deferred_part {
    std::vector<std::uint8_t> columns;  // for each column: 1 if it is stepped
    std::vector<coefficients> steps;    // one for each count of updates
    std::vector<std::uint32_t> step_of; // for each column: its index in steps
    float const* sums = nullptr;        // accumulated gradients; null: none
    float scale = 1;                    // factor of the sums
};

class deferred_update {
public:
    std::vector<deferred_part> parts; // for each matrix
    bool zero_nonfinite = false;
    // If set, called with each matrix whose update is complete, in the thread that completed it. Must not throw.
    std::function<void(std::size_t)> matrix_done = {};

    [[nodiscard]] bool is_active() const noexcept { return is_active_; }
    [[nodiscard]] bool is_done() const noexcept { return work_.is_done(); }
    // Allocates, so that begin() does not. `parts` must not change until then. Call only while no thread works on it.
    void prepare(std::vector<zenflow_matrix> const& matrices)
    {
        std::vector<tile> tiles;
        std::vector<std::atomic<std::size_t>> left(matrices.size());
        for (std::size_t m = 0; m < matrices.size(); ++m) {
            for (std::size_t strip = 0; strip < matrices[m].strips() && parts[m].sums != nullptr; ++strip)
                for (std::size_t part = 0; part < matrices[m].strip_parts(); ++part)
                    tiles.push_back({m, strip, part});
            left[m] = parts[m].sums == nullptr ? 0 : matrices[m].strips() * matrices[m].strip_parts();
        }
        tiles_ = std::move(tiles);
        tiles_left_ = std::move(left);
    }
    // Activates the update and starts its tiles.
    void begin() noexcept
    {
        work_.begin(std::move(tiles_));
        is_active_ = true;
    }
    // Activates an update whose tiles are done already: only its weights are unpublished.
    void begin_done() noexcept
    {
        work_.begin({});
        is_active_ = true;
    }
    void forget() noexcept { is_active_ = false; }
    [[nodiscard]] double take_busy_s() noexcept { return work_.take_busy_s(); }
    [[nodiscard]] std::size_t tiles() const noexcept { return work_.size(); }
    [[nodiscard]] static constexpr std::size_t tile_elems() noexcept
    {
        return zenflow_matrix::strip_columns * zenflow_matrix::strip_rows;
    }
    // Runs one tile. Returns false if no tile is left.
    bool do_next(std::vector<zenflow_matrix> const& matrices, kernel::memory_access access) noexcept
    {
        return work_.do_next([&](tile const& t) {
            do_tile(matrices, t, parts[t.matrix].columns, access);
            if (--tiles_left_[t.matrix] == 0 && matrix_done)
                matrix_done(t.matrix);
        });
    }
    // Steps the given columns of one matrix immediately.
    void do_columns(executor const& cpu, std::vector<zenflow_matrix> const& matrices, std::size_t matrix,
                    std::vector<std::uint8_t> const& columns, kernel::memory_access access) const
    {
        zenflow_matrix const& m = matrices[matrix];
        if (parts[matrix].sums == nullptr)
            return;
        std::size_t const parts_of_strip = m.strip_parts();
        std::size_t const count = m.strips() * parts_of_strip;
        for_each_part(cpu, count, count * tile_elems(), [&](std::size_t i) {
            do_tile(matrices, {matrix, i / parts_of_strip, i % parts_of_strip}, columns, access);
        });
    }

private:
    struct tile {
        std::size_t matrix, strip, part;
    };
    void do_tile(std::vector<zenflow_matrix> const& matrices, tile const& t, std::vector<std::uint8_t> const& columns,
                 kernel::memory_access access) const noexcept
    {
        deferred_part const& part = parts[t.matrix];
        matrices[t.matrix].step_strip(t.strip, t.part, columns, part.sums, part.scale, zero_nonfinite, part.steps,
                                      part.step_of, access);
    }

    std::vector<tile> tiles_; // prepared for begin()
    tiled_work<tile> work_;
    std::vector<std::atomic<std::size_t>> tiles_left_; // for each matrix: tiles not done yet
    bool is_active_ = false;
};

// Runs that work on idle threads of a team: sums first, then the deferred update.
class deferred_worker {
public:
    // when_summed: called when all gradients of a step are accumulated, in any thread, possibly more than once. Must
    // not throw.
    deferred_worker(executor const& cpu, background_team const& team, std::function<void()> when_summed)
        : cpu_(cpu), team_(team), when_summed_(std::move(when_summed))
    {
    }
    deferred_worker(deferred_worker const&) = delete;
    deferred_worker& operator=(deferred_worker const&) = delete;
    ~deferred_worker() { rest(); }

    // Whether this process was forked while work was running. If so, its locks may stay locked forever.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return !team_.in_this_process() && drain_ != nullptr && !drain_->done();
    }
    // Starts background work on the sums, and then on `step` unless null. Returns immediately. If memory is short,
    // nothing starts, and finish() does the work. Requires that the team is ensured.
    void resume(sum_work& sums, deferred_update* step, std::vector<zenflow_matrix> const& matrices) noexcept
    {
        if (step != nullptr && (!step->is_active() || step->is_done()))
            step = nullptr;
        if (sums.is_done() && step == nullptr)
            return;
        try {
            // The previous drain, which may have less work, leaves as soon as it sees that this one waits.
            drain_.reset(new submission<drain>(team_->submit(drain{this, &sums, step, &matrices})));
        } catch (std::bad_alloc const&) {
        }
    }
    // Finishes the sums, and the deferred update if given. Waits.
    void finish(sum_work& sums)
    {
        if (sums.is_done())
            return;
        rest();
        for_each_part(cpu_, sums.size(), sums.size() * 65536, [&](std::size_t) { (void)sums.do_next(accumulate); });
        when_summed_();
    }
    void finish(sum_work& sums, deferred_update& step, std::vector<zenflow_matrix> const& matrices)
    {
        finish(sums);
        if (!step.is_active())
            return;
        rest();
        if (!step.is_done())
            for_each_part(cpu_, step.tiles(), step.tiles() * deferred_update::tile_elems(),
                          [&](std::size_t) { (void)step.do_next(matrices, access()); });
    }
    [[nodiscard]] kernel::memory_access access() const noexcept { return {false, cpu_.prefetch_bytes()}; }

private:
    static void accumulate(sum_tile const& t) noexcept
    {
        t.matrix->accumulate(t.begin, t.end, *t.step, t.first, t.sums);
    }
    // Waits for the drain. While no other caller waits for the team, the drain runs until its work is done.
    void rest() noexcept { drain_.reset(); }

    struct drain {
        deferred_worker const* worker;
        sum_work* sums;
        deferred_update* step; // may be null
        std::vector<zenflow_matrix> const* matrices;
        void operator()(unsigned) const noexcept
        {
            while (!worker->team_->others_wait()) {
                if (sums->do_next(accumulate)) {
                    if (sums->is_done())
                        worker->when_summed_();
                    continue;
                }
                if (step == nullptr)
                    return;
                if (sums->is_done() && !step->do_next(*matrices, worker->access()))
                    return;
            }
        }
    };

    executor cpu_;
    background_team const& team_;
    std::function<void()> when_summed_;
    std::unique_ptr<submission<drain>> drain_; // last: it uses the other members
};

} // namespace detail
ADAMANT_END_NAMESPACE
