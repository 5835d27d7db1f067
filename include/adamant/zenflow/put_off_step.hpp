// SPDX-License-Identifier: Apache-2.0
// The step of what was put off in one window: planned before anything is written, done in the background by whoever has
// time, and landed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/for_each_part.hpp>
#include <adamant/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What one matrix has put off.
struct put_off_part {
    std::vector<std::uint8_t> columns;  // a flag for each column: whether it is stepped
    std::vector<coefficients> steps;    // for each count of updates,
    std::vector<std::uint32_t> step_of; // and which of them each column takes
    float const* sums = nullptr;        // null: nothing was added up
    float scale = 1;                    // of the sums
};

class put_off_step {
public:
    std::vector<put_off_part> parts; // of each matrix
    bool zero_nonfinite = false;

    [[nodiscard]] bool is_there() const noexcept { return is_there_; }
    [[nodiscard]] bool is_done() const noexcept { return next_.load() >= tiles_.size() && running_.load() == 0; }
    // Is to be done, of these matrices.
    void begin(std::vector<zenflow_matrix> const& of)
    {
        tiles_.clear();
        for (std::size_t m = 0; m < of.size(); ++m)
            for (std::size_t strip = 0; strip < of[m].strips() && parts[m].sums != nullptr; ++strip)
                for (std::size_t at = 0; at < of[m].strip_parts(); ++at)
                    tiles_.push_back({m, strip, at});
        next_ = 0;
        is_there_ = true;
    }
    // Has been done elsewhere.
    void begin_done() noexcept
    {
        tiles_.clear();
        next_ = 0;
        is_there_ = true;
    }
    void forget() noexcept { is_there_ = false; }
    [[nodiscard]] std::size_t tiles() const noexcept { return tiles_.size(); }
    [[nodiscard]] static constexpr std::size_t tile_elems() noexcept
    {
        return zenflow_matrix::strip_columns * zenflow_matrix::strip_rows;
    }
    // Does one tile that nobody has begun; false where there is none.
    bool do_next(std::vector<zenflow_matrix> const& of, kernel::memory_access how) noexcept
    {
        ++running_; // first, so that is_done() never sees all begun and none running too early
        std::size_t const i = next_.fetch_add(1);
        bool const found = i < tiles_.size();
        if (found)
            do_tile(of, tiles_[i], parts[tiles_[i].matrix].columns, how);
        --running_;
        return found;
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
        put_off_part const& part = parts[what.matrix];
        of[what.matrix].step_strip(what.strip, what.at, columns, part.sums, part.scale, zero_nonfinite, part.steps,
                                   part.step_of, how);
    }

    std::vector<tile> tiles_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> running_{0};
    bool is_there_ = false;
};

// Does such steps in a team's threads, while these have nothing else to do.
class put_off_worker {
public:
    explicit put_off_worker(executor const& cpu) : cpu_(cpu), team_(cpu.team()) {}
    put_off_worker(put_off_worker const&) = delete;
    put_off_worker& operator=(put_off_worker const&) = delete;
    ~put_off_worker() { rest(); }

    // Work in the background needs a thread. Throws what the team's constructor does.
    void have_team()
    {
        if (team_ == nullptr)
            team_ = std::make_shared<adamant::team>(team_options{.threads = 1, .bind = binding::none});
    }
    // Goes on with it, if there is anything left to do. Returns at once.
    void go_on(put_off_step& with, std::vector<zenflow_matrix> const& of)
    {
        if (!with.is_there() || with.is_done() || (shift_ != nullptr && !shift_->done()))
            return;
        shift_.reset();
        shift_.reset(new submission<shift>(team_->submit(shift{this, &with, &of})));
    }
    // Returns when all of it is done.
    void finish(put_off_step& with, std::vector<zenflow_matrix> const& of)
    {
        if (!with.is_there())
            return;
        rest(); // nobody else waits, so that a shift does all there is
        if (!with.is_done())
            for_each_part(cpu_, with.tiles(), with.tiles() * put_off_step::tile_elems(),
                          [&](std::size_t) { (void)with.do_next(of, access()); });
    }
    // No thread is at work any more.
    void rest() noexcept { shift_.reset(); }
    [[nodiscard]] kernel::memory_access access() const noexcept { return {false, cpu_.prefetch_bytes()}; }

private:
    struct shift {
        put_off_worker const* worker;
        put_off_step* step;
        std::vector<zenflow_matrix> const* of;
        void operator()(unsigned) const noexcept
        {
            while (!worker->team_->others_wait() && step->do_next(*of, worker->access()))
                ;
        }
    };

    executor cpu_;
    std::shared_ptr<adamant::team> team_;
    std::unique_ptr<submission<shift>> shift_; // last: it uses the others
};

} // namespace detail
ADAMANT_END_NAMESPACE
