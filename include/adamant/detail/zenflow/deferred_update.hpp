// SPDX-License-Identifier: Apache-2.0
// The work that ZenFlow does on idle threads: accumulation of gradients, and the deferred update of a window. Both are
// lists of tiles that are planned before anything is written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A thread-safe list of tiles, each handed out once. begin() may run concurrently with do_next(), which sees either the
// old list or the new one.
template <class Tile>
class tiled_work {
public:
    // Replaces the tiles, which have `elems` elements together. Requires that no thread works on a tile.
    void begin(std::vector<Tile> tiles, std::size_t elems) noexcept
    {
        std::lock_guard const lock(mutex_);
        tiles_ = std::move(tiles);
        elems_ = elems;
        next_ = 0;
    }
    [[nodiscard]] std::size_t size() const noexcept
    {
        std::lock_guard const lock(mutex_);
        return tiles_.size();
    }
    // Elements of all tiles.
    [[nodiscard]] std::size_t elems() const noexcept
    {
        std::lock_guard const lock(mutex_);
        return elems_;
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
    std::size_t elems_ = 0;
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

    [[nodiscard]] bool is_active() const noexcept { return is_active_; }
    [[nodiscard]] bool is_done() const noexcept { return work_.is_done(); }
    // Plans the tiles of `parts`, which must not change until they are done. Call only while no thread works on it.
    void prepare(std::vector<zenflow_matrix> const& matrices)
    {
        std::vector<tile> tiles;
        std::size_t elems = 0;
        std::vector<std::atomic<std::size_t>> left(matrices.size());
        for (std::size_t m = 0; m < matrices.size(); ++m) {
            for (std::size_t strip = 0; strip < matrices[m].strips() && parts[m].sums != nullptr; ++strip)
                for (std::size_t part = 0; part < matrices[m].strip_parts(); ++part)
                    tiles.push_back({m, strip, part});
            elems += parts[m].sums == nullptr ? 0 : matrices[m].size();
            left[m] = parts[m].sums == nullptr ? 0 : matrices[m].strips() * matrices[m].strip_parts();
        }
        work_.begin(std::move(tiles), elems);
        tiles_left_ = std::move(left);
    }
    // Activates the update. From now on threads may take its tiles.
    void begin() noexcept { is_active_ = true; }
    // Activates an update whose tiles are done already: only its weights are unpublished.
    void begin_done() noexcept
    {
        work_.begin({}, 0);
        is_active_ = true;
    }
    void forget() noexcept
    {
        is_active_ = false;
        (void)take_busy_s(); // belongs to no later window
    }
    [[nodiscard]] double take_busy_s() noexcept { return work_.take_busy_s(); }
    [[nodiscard]] std::size_t tiles() const noexcept { return work_.size(); }
    [[nodiscard]] std::size_t elems() const noexcept { return work_.elems(); }
    // Runs one tile, and calls matrix_done(matrix) after the last one of a matrix. Returns false if no tile is left.
    template <class MatrixDone>
    bool do_next(std::vector<zenflow_matrix> const& matrices, kernel::memory_access const& access,
                 MatrixDone const& matrix_done) noexcept
    {
        return work_.do_next([&](tile const& t) {
            do_tile(matrices, t, parts[t.matrix].columns, access);
            if (--tiles_left_[t.matrix] == 0)
                matrix_done(t.matrix);
        });
    }
    // Steps the given columns of one matrix immediately.
    void do_columns(executor const& cpu, std::vector<zenflow_matrix> const& matrices, std::size_t matrix,
                    std::vector<std::uint8_t> const& columns, kernel::memory_access const& access) const
    {
        zenflow_matrix const& m = matrices[matrix];
        if (parts[matrix].sums == nullptr)
            return;
        std::size_t const parts_of_strip = m.strip_parts();
        for_each_part(cpu, m.strips() * parts_of_strip, m.size(), [&](std::size_t i) {
            do_tile(matrices, {matrix, i / parts_of_strip, i % parts_of_strip}, columns, access);
        });
    }

private:
    struct tile {
        std::size_t matrix, strip, part;
    };
    void do_tile(std::vector<zenflow_matrix> const& matrices, tile const& t, std::vector<std::uint8_t> const& columns,
                 kernel::memory_access const& access) const noexcept
    {
        deferred_part const& part = parts[t.matrix];
        matrices[t.matrix].step_strip(t.strip, t.part, columns, part.sums, part.scale, zero_nonfinite, part.steps,
                                      part.step_of, access);
    }

    tiled_work<tile> work_;
    std::vector<std::atomic<std::size_t>> tiles_left_; // for each matrix: tiles not done yet
    bool is_active_ = false;
};

} // namespace detail
ADAMANT_END_NAMESPACE
