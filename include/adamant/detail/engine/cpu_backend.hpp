// SPDX-License-Identifier: Apache-2.0
// The CPU's side of a step: which blocks it has, the list of what is to be done to them, and the work on a block.
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
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/squares_total.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Consecutive blocks of a shard; at least one.
struct block_range {
    std::size_t shard;
    std::size_t begin;
    std::size_t end;
    [[nodiscard]] std::size_t blocks() const noexcept { return end - begin; }
    [[nodiscard]] std::size_t first_element() const noexcept { return begin * norm_block_elems; }
    // In a shard of that size.
    [[nodiscard]] std::size_t elements(std::size_t size) const noexcept
    {
        return std::min(size, end * norm_block_elems) - first_element();
    }
};

// Where the CPU has everything.
[[nodiscard]] inline std::vector<block_range> ranges_of_all(registry const& over)
{
    std::vector<block_range> ranges;
    for (std::size_t i = 0; i < over.size(); ++i)
        if (over[i].shard.blocks() != 0)
            ranges.push_back({i, 0, over[i].shard.blocks()});
    return ranges;
}

// A pass over a range is one entry of a list. Its blocks are pieces of work, numbered through the whole list; threads
// take pieces in that order. Entries are added by one thread at a time, or under a lock, before their pieces are taken.
class cpu_backend {
public:
    cpu_backend(executor const& cpu, registry const& over, step_plan const& plan, block_table& blocks)
        : cpu_(cpu), over_(over), plan_(plan), blocks_(blocks), members_(cpu_.threads())
    {
    }

    [[nodiscard]] executor const& cpu() const noexcept { return cpu_; }

    // ---- What the CPU has

    // Bytes that build_layout() allocates for the given number of ranges and shards.
    [[nodiscard]] static constexpr std::size_t bytes_for(std::size_t ranges, std::size_t shards) noexcept
    {
        return most_passes * (ranges + 1) * (sizeof(entry) + sizeof(std::size_t)) + ranges * sizeof(block_range) +
               (shards + 1) * sizeof(std::size_t);
    }
    // `ranges` is what the CPU has, in order. Weights go up to a device range by range. Allocates.
    void build_layout(std::vector<block_range> ranges)
    {
        elements_ = 0;
        std::size_t blocks = 0;
        first_range_.assign(over_.size() + 1, 0);
        for (block_range const& range : ranges) {
            elements_ += range.elements(over_[range.shard].shard.size());
            blocks += range.blocks();
            ++first_range_[range.shard + 1];
        }
        for (std::size_t i = 0; i < over_.size(); ++i)
            first_range_[i + 1] += first_range_[i];
        entries_.resize(most_passes * (ranges.size() + 1));
        left_ = std::vector<std::atomic<std::size_t>>(entries_.size());
        ranges_ = std::move(ranges);
        pieces_at_once_ =
            std::clamp<std::size_t>(blocks / (16 * cpu_.threads()), 1, cpu_.max_chunk_elems() / norm_block_elems);
    }
    [[nodiscard]] std::vector<block_range> const& ranges() const noexcept { return ranges_; }
    // The numbers of a shard's ranges are from this one on, up to that of the next shard.
    [[nodiscard]] std::size_t first_range(std::size_t shard) const noexcept { return first_range_[shard]; }
    // How many elements of a shard the CPU has.
    [[nodiscard]] std::size_t elements_of(std::size_t shard) const noexcept
    {
        std::size_t elements = 0;
        for (std::size_t r = first_range_[shard]; r < first_range_[shard + 1]; ++r)
            elements += ranges_[r].elements(over_[shard].shard.size());
        return elements;
    }
    // How many pieces a thread should take at a time.
    [[nodiscard]] std::size_t pieces_at_once() const noexcept { return pieces_at_once_; }
    // Calls work(begin, end) in the team's threads, for elements of the shard that together are the range.
    template <class Work>
    void for_each_slice_of(block_range const& range, Work const& work) const
    {
        std::size_t const begin = range.first_element();
        cpu_.for_each_slice(range.elements(over_[range.shard].shard.size()),
                            [&](slice part) { work(begin + part.begin, begin + part.end); });
    }

    // ---- What is to be done

    // Empties the list; its pieces are numbered from first_piece on. Only while no worker runs.
    void begin(std::size_t first_piece) noexcept
    {
        next_piece_ = first_piece;
        entry_count_.store(0, std::memory_order_relaxed);
        std::fill(members_.begin(), members_.end(), member_state{});
        leaves_the_rest_.store(false, std::memory_order_relaxed);
        gradients_differ_.store(false, std::memory_order_relaxed);
    }
    // Each returns how many pieces it has added. A list has room for most_passes passes over everything.
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
    // All shards that take part.
    [[nodiscard]] std::size_t enqueue_all(block_pass pass) noexcept
    {
        std::size_t pieces = 0;
        for (std::size_t i = 0; i < over_.size(); ++i)
            if (plan_.takes_part(i))
                pieces += enqueue_shard(i, pass);
        return pieces;
    }
    // A piece without work, so that a thread comes to the end of the list.
    [[nodiscard]] std::size_t enqueue_nothing() noexcept
    {
        return enqueue_entry(ranges_.size(), block_pass::measure, 1);
    }
    // finish() has been called. At any time.
    void all_is_submitted() noexcept
    {
        if (plan_.speculates_until_finish)
            leave_the_rest();
    }
    [[nodiscard]] bool nothing_enqueued() const noexcept { return entry_count_.load(std::memory_order_relaxed) == 0; }

    // ---- The work

    // Does pieces [begin, end), in the team's thread `member`.
    void run(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        auto const started = std::chrono::steady_clock::now();
        work(member, begin, end);
        members_[member].busy += std::chrono::steady_clock::now() - started;
    }
    // Calls run(member, begin, end) for parts of the pieces [begin, end), as executor::for_each_slice() does for
    // slices: in the calling thread, or in the team's, each of which begins with the same pieces every time. Returns
    // when they are done.
    template <class Run>
    void run_all(std::size_t begin, std::size_t end, Run const& run)
    {
        if (cpu_.works_itself(elements_)) {
            run(0, begin, end);
            return;
        }
        auto const do_chunks = [&](unsigned member, std::size_t from, std::size_t to) {
            run(member, begin + from * pieces_at_once_, std::min(end, begin + to * pieces_at_once_));
        };
        cpu_.team()->run((end - begin + pieces_at_once_ - 1) / pieces_at_once_, do_chunks,
                         cpu_.chunks(elements_).threads);
    }
    // The share of the threads that is at work in run_all().
    [[nodiscard]] double share_of_threads() const noexcept
    {
        unsigned const at_work = cpu_.works_itself(elements_) ? 1 : cpu_.chunks(elements_).threads;
        return static_cast<double>(at_work) / cpu_.threads();
    }
    // Does pieces [begin, end), as thread `member`.
    void work(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        float_mode_scope const mode(subnormals::flushed); // once for all blocks
        scratch_block scratch;
        for (entry const* at = entry_of(begin); begin < end; ++at) {
            std::size_t const stop = std::min(end, at->end);
            if (at->range != ranges_.size()) {
                block_range const& range = ranges_[at->range];
                run_blocks(member, over_[range.shard], at->pass, range.begin + begin - at->begin,
                           range.begin + stop - at->begin, scratch);
            }
            begin = stop;
        }
    }
    // The end of the pieces of the entry that piece `begin` belongs to.
    [[nodiscard]] std::size_t end_of_entry(std::size_t begin) const noexcept { return entry_of(begin)->end; }
    // Pieces [begin, end) of one entry have been done. Returns its range if they were the last ones, and have changed
    // it: its weights are new.
    [[nodiscard]] std::optional<std::size_t> changed_range(std::size_t begin, std::size_t end) noexcept
    {
        entry const* const at = entry_of(begin);
        if (at->range == ranges_.size() || only_reads(at->pass))
            return std::nullopt;
        std::atomic<std::size_t>& left = left_[static_cast<std::size_t>(at - entries_.data())];
        if (left.fetch_sub(end - begin, std::memory_order_acq_rel) != end - begin || !has_changed(*at))
            return std::nullopt;
        return at->range;
    }

    // ---- What has been found. While no worker runs.

    // Whether gradients are those that records were made with, after a pass `compare`.
    [[nodiscard]] bool same_gradients() const noexcept { return !gradients_differ_.load(std::memory_order_relaxed); }
    // How long the threads have worked in run() since begin(), on average.
    [[nodiscard]] double busy_seconds() const noexcept
    {
        std::chrono::steady_clock::duration all{};
        for (member_state const& each : members_)
            all += each.busy;
        return std::chrono::duration<double>(all).count() / static_cast<double>(members_.size());
    }
    // The squares of all blocks that were looked at since begin().
    [[nodiscard]] squares_total squares() const noexcept
    {
        squares_total all = members_[0].squares;
        for (std::size_t i = 1; i < members_.size(); ++i)
            all.add(members_[i].squares);
        return all;
    }

private:
    // The first, back, again, what had no room for records, and back after all.
    static constexpr std::size_t most_passes = 5;
    struct entry {
        std::size_t range; // or ranges_.size()
        block_pass pass;
        std::size_t begin; // pieces
        std::size_t end;
    };

    std::size_t enqueue_entry(std::size_t range, block_pass pass, std::size_t pieces) noexcept
    {
        std::size_t const count = entry_count_.load(std::memory_order_relaxed);
        entries_[count] = {range, pass, next_piece_, next_piece_ + pieces};
        left_[count].store(pieces, std::memory_order_relaxed);
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

    // Whether any block of an entry that is done was stepped, or rolled back.
    [[nodiscard]] bool has_changed(entry const& of) noexcept
    {
        if (of.pass != block_pass::speculate && (of.pass != block_pass::rest || plan_.keeps_records))
            return true;
        block_range const& range = ranges_[of.range];
        std::size_t const first = over_[range.shard].first_block;
        for (std::size_t b = first + range.begin; b < first + range.end; ++b)
            if ((blocks_.record(b) != nullptr) == (of.pass == block_pass::speculate))
                return true;
        return false;
    }
    // From here on `speculate` only measures: the blocks wait for the norm.
    void leave_the_rest() noexcept { leaves_the_rest_.store(true, std::memory_order_relaxed); }
    // One pass over blocks [begin, end) of a shard. A device does the same in its own way: see device_part.
    void run_blocks(unsigned member, tracked_shard const& s, block_pass pass, std::size_t begin, std::size_t end,
                    scratch_block& scratch) noexcept
    {
        bool const measures = is_first(pass) && plan_.measures;
        group_step const& assumed = plan_.assumed[s.group];
        group_step const& now = pass == block_pass::speculate ? assumed : plan_.decided[s.group];
        kernel::memory_access const how{elements_ >= stream_weight_out_from_elems, cpu_.prefetch_bytes()};
        bool const summed = s.summed != 0;
        for (std::size_t b = begin; b < end; ++b) {
            std::byte*& record = blocks_.record(s.first_block + b);
            if ((pass == block_pass::rest && record != nullptr) || (pass == block_pass::rollback && record == nullptr))
                continue;
            if ((pass == block_pass::rest || (pass == block_pass::step && !plan_.measures)) && !plan_.keeps_records &&
                !summed && !now.rules.zero_nonfinite && !now.rules.limited) { // as many blocks as go together
                std::size_t stop = b + 1;
                while (stop < end && blocks_.record(s.first_block + stop) == nullptr)
                    ++stop;
                s.shard.step(b, stop, now.c, how);
                b = stop - 1;
                continue;
            }
            if ((pass == block_pass::rollback || pass == block_pass::redo) && record != nullptr) {
                s.shard.rollback(b, s.shard.gradient(b, summed, assumed.rules, false, scratch), assumed.c, how, record,
                                 scratch);
                record = nullptr;
                if (pass == block_pass::rollback) {
                    std::size_t const from = b * norm_block_elems;
                    s.shard.round_weights(from, from + s.shard.length(b));
                    continue;
                }
            }
            if (pass == block_pass::compare) {
                if (s.shard.gradient_checksum(b, summed) != blocks_.checksum(s.first_block + b))
                    gradients_differ_.store(true, std::memory_order_relaxed);
                continue;
            }
            offload_shard::ready_gradient const g =
                s.shard.gradient(b, summed, only_reads(pass) ? gradient_rules{} : now.rules, measures, scratch);
            if (measures) {
                blocks_.squares(s.first_block + b) = g.squares;
                members_[member].squares.add(g.squares);
            }
            if (pass == block_pass::measure)
                continue;
            if (pass == block_pass::speculate) {
                // A step that will be skipped need not be taken first.
                if (plan_.skips_nonfinite && g.squares.nonfinite != 0)
                    leave_the_rest();
                if (leaves_the_rest_.load(std::memory_order_relaxed))
                    continue;
            }
            if (pass == block_pass::speculate || plan_.keeps_records) {
                journal& records = blocks_.records();
                if (std::byte* const room = records.room(member, s.shard.record_bytes_at_most(s.shard.length(b)))) {
                    records.wrote(member, s.shard.step_recorded(b, g, now.c, how, room));
                    record = room;
                    if (plan_.keeps_checksums)
                        blocks_.checksum(s.first_block + b) = s.shard.gradient_checksum(b, summed);
                    continue;
                }
                if (pass == block_pass::speculate || plan_.waits_for_room)
                    continue;
            }
            s.shard.step(b, g, now.c, how);
        }
    }

    executor cpu_;
    registry const& over_;
    step_plan const& plan_;
    block_table& blocks_;
    std::vector<block_range> ranges_;
    std::vector<std::size_t> first_range_; // of each shard, and the end
    std::size_t elements_ = 0;
    std::size_t pieces_at_once_ = 1;
    std::vector<entry> entries_;
    std::vector<std::atomic<std::size_t>> left_; // pieces of each entry that are not done
    std::atomic<std::size_t> entry_count_{0};
    std::size_t next_piece_ = 0;
    // Of each member of the team.
    struct alignas(64) member_state {
        std::chrono::steady_clock::duration busy{};
        squares_total squares;
    };
    std::vector<member_state> members_;
    std::atomic<bool> leaves_the_rest_{false};
    std::atomic<bool> gradients_differ_{false};
};

} // namespace detail
ADAMANT_END_NAMESPACE
