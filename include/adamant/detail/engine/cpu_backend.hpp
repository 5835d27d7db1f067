// SPDX-License-Identifier: Apache-2.0
// The CPU backend of a step: its blocks, the list of passes over them, and the work on each block.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/engine/block_table.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/exec/background_team.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/squares_total.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Consecutive blocks of a shard. Not empty.
struct block_range {
    std::size_t shard;
    std::size_t begin;
    std::size_t end;
    [[nodiscard]] std::size_t blocks() const noexcept { return end - begin; }
    [[nodiscard]] std::size_t first_element() const noexcept { return begin * norm_block_elems; }
    // Elements of the range in a shard of this size.
    [[nodiscard]] std::size_t elements(std::size_t size) const noexcept
    {
        return std::min(size, end * norm_block_elems) - first_element();
    }
};

// The ranges of a CPU that has all blocks.
[[nodiscard]] inline std::vector<block_range> ranges_of_all(registry const& shard_registry)
{
    std::vector<block_range> ranges;
    for (std::size_t i = 0; i < shard_registry.size(); ++i)
        if (shard_registry[i].shard.blocks() != 0)
            ranges.push_back({i, 0, shard_registry[i].shard.blocks()});
    return ranges;
}

// A pass over a range is an entry of a list. Each block of an entry is a piece of work. Pieces are numbered through the
// whole list, and threads take them in that order. Add entries from one thread at a time, or under a lock, and before
// threads take their pieces.
class cpu_backend {
public:
    cpu_backend(executor const& cpu, registry const& shard_registry, step_plan const& plan, block_table& blocks)
        : cpu_(cpu), registry_(shard_registry), plan_(plan), blocks_(blocks), members_(cpu_.threads())
    {
    }

    [[nodiscard]] executor const& cpu() const noexcept { return cpu_; }

    // ---- Layout

    // Bytes that build_layout() allocates for the given number of ranges and shards.
    [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t ranges, std::size_t shards) noexcept
    {
        return max_passes * (ranges + 1) * (sizeof(entry) + sizeof(std::size_t)) + ranges * sizeof(block_range) +
               (shards + 1) * sizeof(std::size_t);
    }
    // ranges: the blocks of the CPU, in order. Weights are uploaded to a device range by range. Allocates.
    void build_layout(std::vector<block_range> ranges)
    {
        elements_ = 0;
        std::size_t blocks = 0;
        first_range_.assign(registry_.size() + 1, 0);
        for (block_range const& range : ranges) {
            elements_ += range.elements(registry_[range.shard].shard.size());
            blocks += range.blocks();
            ++first_range_[range.shard + 1];
        }
        for (std::size_t i = 0; i < registry_.size(); ++i)
            first_range_[i + 1] += first_range_[i];
        entries_.resize(max_passes * (ranges.size() + 1));
        pieces_left_ = std::vector<std::atomic<std::size_t>>(entries_.size());
        ranges_ = std::move(ranges);
        pieces_at_once_ =
            std::clamp<std::size_t>(blocks / (16 * cpu_.threads()), 1, cpu_.max_chunk_elems() / norm_block_elems);
    }
    [[nodiscard]] std::vector<block_range> const& ranges() const noexcept { return ranges_; }
    // Index of a shard's first range. Its ranges end at first_range(shard + 1).
    [[nodiscard]] std::size_t first_range(std::size_t shard) const noexcept { return first_range_[shard]; }
    // Number of elements of a shard on the CPU.
    [[nodiscard]] std::size_t elements_of(std::size_t shard) const noexcept
    {
        std::size_t elements = 0;
        for (std::size_t r = first_range_[shard]; r < first_range_[shard + 1]; ++r)
            elements += ranges_[r].elements(registry_[shard].shard.size());
        return elements;
    }
    // Number of pieces that a thread should take at a time.
    [[nodiscard]] std::size_t pieces_at_once() const noexcept { return pieces_at_once_; }
    // Calls work(begin, end) in the team's threads for slices of the range, in elements of the shard.
    template <class Work>
    void for_each_slice_of(block_range const& range, Work const& work) const
    {
        std::size_t const begin = range.first_element();
        cpu_.for_each_slice(range.elements(registry_[range.shard].shard.size()),
                            [&](slice part) { work(begin + part.begin, begin + part.end); });
    }

    // ---- The list of work

    // Empties the list, and numbers its pieces from first_piece on. Call only while no thread works.
    void begin(std::size_t first_piece) noexcept
    {
        next_piece_ = first_piece;
        entry_count_.store(0, std::memory_order_relaxed);
        std::fill_n(members_.begin(), members_used_.exchange(0, std::memory_order_relaxed), member_state{});
        stopped_speculating_.store(false, std::memory_order_relaxed);
        gradients_differ_.store(false, std::memory_order_relaxed);
    }
    // The enqueue functions return the number of added pieces. The list has room for max_passes passes over all ranges.
    [[nodiscard]] std::size_t enqueue_range(std::size_t range, block_pass pass) noexcept
    {
        return enqueue_entry(range, pass, ranges_[range].blocks());
    }
    [[nodiscard]] std::size_t enqueue_shard(std::size_t shard, block_pass pass) noexcept
    {
        std::size_t pieces = 0;
        for (std::size_t range = first_range_[shard]; range < first_range_[shard + 1]; ++range)
            pieces += enqueue_range(range, pass);
        return pieces;
    }
    // Enqueues all shards that take part.
    [[nodiscard, gnu::noinline]] std::size_t enqueue_all(block_pass pass) noexcept
    {
        std::size_t pieces = 0;
        for (std::size_t i = 0; i < registry_.size(); ++i)
            if (plan_.takes_part(i))
                pieces += enqueue_shard(i, pass);
        return pieces;
    }
    // Enqueues a piece without work, so that a thread reaches the end of the list.
    [[nodiscard]] std::size_t enqueue_empty_piece() noexcept
    {
        return enqueue_entry(ranges_.size(), block_pass::measure, 1);
    }
    // finish() was called: if the plan says so, blocks not stepped yet wait for the norm. Thread-safe.
    void all_is_submitted() noexcept
    {
        if (plan_.speculates_until == speculation_end::finish)
            stop_speculating();
    }
    [[nodiscard]] bool is_empty() const noexcept { return entry_count_.load(std::memory_order_relaxed) == 0; }

    // ---- The work

    // Processes pieces [begin, end) in the team's thread `member`, and measures its busy time.
    void run(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        auto const started = std::chrono::steady_clock::now();
        work(member, begin, end);
        members_[member].busy += std::chrono::steady_clock::now() - started;
    }
    // Calls run(member, begin, end) for chunks of the pieces [begin, end), as executor::for_each_slice() does for
    // slices: in the calling thread, or in the team's threads. Each thread starts with the same pieces in every pass.
    // Waits. reads: the pass only reads gradients.
    template <class Run>
    void run_all(std::size_t begin, std::size_t end, bool reads, Run const& run)
    {
        // Half of the bytes that are read, as in add_squares().
        if (cpu_.works_itself(elements_, reads ? sizeof(float) / 2 : step_elem_bytes)) {
            run(0, begin, end);
            return;
        }
        auto const do_chunks = [&](unsigned member, std::size_t first, std::size_t last) {
            run(member, begin + first * pieces_at_once_, std::min(end, begin + last * pieces_at_once_));
        };
        cpu_.team()->run((end - begin + pieces_at_once_ - 1) / pieces_at_once_, do_chunks,
                         cpu_.chunks(elements_).threads);
    }
    [[nodiscard]] bool is_small() const noexcept { return is_callers_work(cpu_, elements_); }
    // The share of the executor's threads that run_all() uses to step.
    [[nodiscard]] double share_of_threads() const noexcept
    {
        unsigned const threads = cpu_.works_itself(elements_) ? 1 : cpu_.chunks(elements_).threads;
        return static_cast<double>(threads) / cpu_.threads();
    }
    // Processes pieces [begin, end) as thread `member`.
    void work(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        mark_as_used(member);
        float_mode_scope const mode(subnormals::flushed); // once for all blocks
        kernel::memory_access access{elements_ >= stream_weight_out_from_elems, cpu_.prefetch_bytes()};
        access.fences = false; // one for all blocks, too
        scratch_block scratch;
        bool const has_own_steps = !plan_.coefficients_of.empty(); // read once, because shards may be small
        for (entry const* e = entry_of(begin); begin < end; ++e) {
            std::size_t const stop = std::min(end, e->end);
            if (e->range != ranges_.size()) {
                block_range const& range = ranges_[e->range];
                tracked_shard const& s = registry_[range.shard];
                run_blocks({member, s, has_own_steps ? plan_.coefficients_of[range.shard] : s.group,
                            range.begin + begin - e->begin, range.begin + stop - e->begin, access, scratch},
                           e->pass);
            }
            begin = stop;
        }
        if (access.stream)
            stream_fence();
    }
    // End of the pieces of the entry that contains piece `begin`.
    [[nodiscard]] std::size_t end_of_entry(std::size_t begin) const noexcept { return entry_of(begin)->end; }
    // Call after pieces [begin, end) of one entry. Returns the entry's range if these were its last pieces and the
    // entry changed weights.
    [[nodiscard]] std::optional<std::size_t> changed_range(std::size_t begin, std::size_t end) noexcept
    {
        entry const* const e = entry_of(begin);
        if (e->range == ranges_.size() || only_reads(e->pass))
            return std::nullopt;
        std::atomic<std::size_t>& left = pieces_left_[static_cast<std::size_t>(e - entries_.data())];
        if (left.fetch_sub(end - begin, std::memory_order_acq_rel) != end - begin || !has_changed(*e))
            return std::nullopt;
        return e->range;
    }

    // ---- Results. Call only while no thread works.

    // After a pass `compare`: whether the gradients are those that the records were made with.
    [[nodiscard]] bool same_gradients() const noexcept { return !gradients_differ_.load(std::memory_order_relaxed); }
    // Average seconds that a thread has worked in run() since begin().
    [[nodiscard]] double busy_seconds() const noexcept
    {
        std::chrono::steady_clock::duration total{};
        for (unsigned i = 0; i < members_used_.load(std::memory_order_relaxed); ++i)
            total += members_[i].busy;
        return std::chrono::duration<double>(total).count() / static_cast<double>(members_.size());
    }
    // The squares of all blocks measured since begin().
    [[nodiscard]] squares_total squares() const noexcept
    {
        squares_total total = members_[0].squares;
        for (unsigned i = 1; i < members_used_.load(std::memory_order_relaxed); ++i)
            total.add(members_[i].squares);
        return total;
    }

private:
    // First pass, rollback, second step, blocks without room for a record, and rollback after a device failure.
    static constexpr std::size_t max_passes = 5;
    struct entry {
        std::size_t range; // ranges_.size(): a piece without work
        block_pass pass;
        std::size_t begin; // first piece
        std::size_t end;   // past the last piece
    };

    void mark_as_used(unsigned member) noexcept
    {
        unsigned used = members_used_.load(std::memory_order_relaxed);
        while (used <= member && !members_used_.compare_exchange_weak(used, member + 1, std::memory_order_relaxed))
            ;
    }
    std::size_t enqueue_entry(std::size_t range, block_pass pass, std::size_t pieces) noexcept
    {
        std::size_t const count = entry_count_.load(std::memory_order_relaxed);
        entries_[count] = {range, pass, next_piece_, next_piece_ + pieces};
        pieces_left_[count].store(pieces, std::memory_order_relaxed);
        next_piece_ += pieces;
        entry_count_.store(count + 1, std::memory_order_release);
        return pieces;
    }
    [[nodiscard]] entry const* entry_of(std::size_t piece) const noexcept
    {
        entry const* const first = entries_.data();
        return std::upper_bound(first, first + entry_count_.load(std::memory_order_acquire), piece,
                                [](std::size_t p, entry const& e) { return p < e.end; });
    }

    // Whether a completed entry stepped or rolled back any block.
    [[nodiscard]] bool has_changed(entry const& e) noexcept
    {
        if (e.pass != block_pass::speculate && (e.pass != block_pass::rest || plan_.keeps_records()))
            return true;
        block_range const& range = ranges_[e.range];
        std::size_t const first = registry_[range.shard].first_block;
        for (std::size_t b = first + range.begin; b < first + range.end; ++b)
            if ((blocks_.record(b) != nullptr) == (e.pass == block_pass::speculate))
                return true;
        return false;
    }
    // From now on `speculate` only measures: the remaining blocks wait for the norm.
    void stop_speculating() noexcept { stopped_speculating_.store(true, std::memory_order_relaxed); }
    // ---- One pass over blocks [begin, end) of a shard. device_part implements the same passes on a device.

    struct block_work {
        unsigned member;
        tracked_shard const& s;
        std::size_t coefficients; // index into the plan's
        std::size_t begin, end;
        kernel::memory_access const& access;
        scratch_block& scratch;
    };
    void run_blocks(block_work const& w, block_pass pass) noexcept
    {
        switch (pass) {
        case block_pass::measure: return measure_blocks(w);
        case block_pass::step: return step_blocks(w, plan_.measures());
        case block_pass::speculate: return speculate_blocks(w);
        case block_pass::rest: return step_blocks(w, false);
        case block_pass::rollback: return roll_back_blocks(w);
        case block_pass::redo: return redo_blocks(w);
        case block_pass::compare: return compare_blocks(w);
        }
    }
    void measure_blocks(block_work const& w) noexcept
    {
        for (std::size_t b = w.begin; b < w.end; ++b)
            (void)ready_gradient(w, b, {}, plan_.measures());
    }
    // Steps the blocks that have no record. measures: the gradients are not measured yet.
    void step_blocks(block_work const& w, bool measures) noexcept
    {
        group_step const& step = plan_.decided[w.coefficients];
        bool const is_plain =
            !measures && !plan_.keeps_records() && w.s.summed == 0 && !step.rules.zero_nonfinite && !step.rules.limited;
        for (std::size_t b = w.begin, stop = b; b < w.end; b = stop) {
            stop = b + 1;
            if (record_of(w, b) != nullptr)
                continue;
            if (!is_plain) {
                step_block(w, b, ready_gradient(w, b, step.rules, measures), step);
                continue;
            }
            while (stop < w.end && record_of(w, stop) == nullptr) // as many blocks as possible with one call
                ++stop;
            w.s.shard.step(b, stop, step.c, w.access);
        }
    }
    // Measures all blocks, and steps those for which the journal has room.
    void speculate_blocks(block_work const& w) noexcept
    {
        group_step const& step = plan_.assumed[w.coefficients];
        for (std::size_t b = w.begin; b < w.end; ++b) {
            offload_shard::ready_gradient const g = ready_gradient(w, b, step.rules, plan_.measures());
            if (plan_.terms.on_nonfinite == nonfinite_policy::skip &&
                g.squares.nonfinite != 0) // the step will be skipped
                stop_speculating();
            if (!stopped_speculating_.load(std::memory_order_relaxed))
                (void)step_recorded(w, b, g, step);
        }
    }
    void roll_back_blocks(block_work const& w) noexcept
    {
        for (std::size_t b = w.begin; b < w.end; ++b)
            if (roll_back_block(w, b)) {
                std::size_t const first = b * norm_block_elems;
                w.s.shard.round_weights(first, first + w.s.shard.length(b));
            }
    }
    void redo_blocks(block_work const& w) noexcept
    {
        group_step const& step = plan_.decided[w.coefficients];
        for (std::size_t b = w.begin; b < w.end; ++b) {
            (void)roll_back_block(w, b);
            step_block(w, b, ready_gradient(w, b, step.rules, false), step);
        }
    }
    void compare_blocks(block_work const& w) noexcept
    {
        for (std::size_t b = w.begin; b < w.end; ++b)
            if (w.s.shard.gradient_checksum(b, w.s.summed != 0) != blocks_.checksum(w.s.first_block + b))
                gradients_differ_.store(true, std::memory_order_relaxed);
    }

    [[nodiscard]] std::byte*& record_of(block_work const& w, std::size_t b) noexcept
    {
        return blocks_.record(w.s.first_block + b);
    }
    [[nodiscard]] offload_shard::ready_gradient ready_gradient(block_work const& w, std::size_t b,
                                                               gradient_rules const& rules, bool measures) noexcept
    {
        offload_shard::ready_gradient const g = w.s.shard.gradient(b, w.s.summed != 0, rules, measures, w.scratch);
        if (measures) {
            blocks_.squares(w.s.first_block + b) = g.squares;
            members_[w.member].squares.add(g.squares);
        }
        return g;
    }
    void step_block(block_work const& w, std::size_t b, offload_shard::ready_gradient const& g,
                    group_step const& step) noexcept
    {
        if (plan_.keeps_records() &&
            (step_recorded(w, b, g, step) || plan_.on_full_journal == full_journal_policy::defer))
            return;
        w.s.shard.step(b, g, step.c, w.access);
    }
    // Returns false, and does nothing, if the journal has no room.
    [[nodiscard]] bool step_recorded(block_work const& w, std::size_t b, offload_shard::ready_gradient const& g,
                                     group_step const& step) noexcept
    {
        journal& records = blocks_.records();
        std::byte* const room = records.room(w.member, w.s.shard.record_bytes_at_most(w.s.shard.length(b)));
        if (room == nullptr)
            return false;
        records.wrote(w.member, w.s.shard.step_recorded(b, g, step.c, w.access, room));
        record_of(w, b) = room;
        if (plan_.records == record_life::next_step)
            blocks_.checksum(w.s.first_block + b) = w.s.shard.gradient_checksum(b, w.s.summed != 0);
        return true;
    }
    // Returns false if the block has no record.
    [[nodiscard]] bool roll_back_block(block_work const& w, std::size_t b) noexcept
    {
        std::byte*& record = record_of(w, b);
        if (record == nullptr)
            return false;
        group_step const& assumed = plan_.assumed[w.coefficients];
        w.s.shard.rollback(b, w.s.shard.gradient(b, w.s.summed != 0, assumed.rules, false, w.scratch), assumed.c,
                           w.access, record, w.scratch);
        record = nullptr;
        return true;
    }

    executor cpu_;
    registry const& registry_;
    step_plan const& plan_;
    block_table& blocks_;
    std::vector<block_range> ranges_;
    std::vector<std::size_t> first_range_; // for each shard, and the end
    std::size_t elements_ = 0;
    std::size_t pieces_at_once_ = 1;
    std::vector<entry> entries_;
    std::vector<std::atomic<std::size_t>> pieces_left_; // for each entry: pieces not done yet
    std::atomic<std::size_t> entry_count_{0};
    std::size_t next_piece_ = 0;
    // State of a member of the team.
    struct alignas(64) member_state {
        std::chrono::steady_clock::duration busy{};
        squares_total squares;
    };
    std::vector<member_state> members_;
    // Members from this index on are unused since begin(), so a small step need not visit them all.
    std::atomic<unsigned> members_used_{0};
    std::atomic<bool> stopped_speculating_{false};
    std::atomic<bool> gradients_differ_{false};
};

} // namespace detail
ADAMANT_END_NAMESPACE
