// SPDX-License-Identifier: Apache-2.0
// The passes of a step over the shards of an optimizer: what each does to a block, and the order of the blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/work_line.hpp>
#include <adamant/optimizer/journal.hpp>
#include <adamant/shard/offload_shard.hpp>
#include <adamant/step/add_blocks.hpp>
#include <adamant/step/step.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// One shard and what is known of it from step to step.
struct tracked_shard {
    offload_shard shard;
    std::size_t group;
    std::size_t first_block = 0; // on the line of all blocks
    unsigned summed = 0;         // micro-steps in its accumulator
    bool submitted = false;
    bool left_out = false;
    std::size_t cpu_elems = 0; // of its elements; a device has the others
};

// Consecutive blocks of a shard, which the CPU has.
struct block_range {
    std::size_t shard;
    std::size_t begin;
    std::size_t end;
    [[nodiscard]] std::size_t blocks() const noexcept { return end - begin; }
};

class offload_passes {
public:
    offload_passes(executor const& cpu, work_line::end_function at_end)
        : cpu_(with_team(cpu)), busy_(cpu_.threads()),
          line_(
              cpu_.team(), [this](unsigned member, std::size_t begin, std::size_t end) { work(member, begin, end); },
              std::move(at_end))
    {
    }

    std::vector<tracked_shard> shards;
    // Of the first pass, and of what comes after it; one for each group.
    std::vector<group_step> speculated, settled;
    bool keep_records = false;   // of every pass that steps
    bool keep_checksums = false; // of the gradients that records were made with
    // A block for whose record there is no room waits, in every pass that keeps records.
    bool waits_for_room = false;
    // Called in one of the team's threads, when a range has been stepped, or taken back: its weights are new.
    std::function<void(std::size_t range)> on_weights = {};

    [[nodiscard]] executor const& cpu() const noexcept { return cpu_; }
    [[nodiscard]] work_line& line() noexcept { return line_; }
    // Throws where the work of a step may not be waited for; see work_line.
    void check_caller() const { line_.check_caller(); }
    [[nodiscard]] std::size_t blocks() const noexcept { return squares_.size(); }
    [[nodiscard]] std::size_t journal_bytes() const noexcept { return journal_.bytes(); }
    // Of the shards that were submitted. While the line is idle.
    [[nodiscard]] std::size_t unrecorded_blocks() const noexcept
    {
        std::size_t n = 0;
        for (tracked_shard const& s : shards)
            if (s.submitted)
                n += static_cast<std::size_t>(std::count(
                    records_.begin() + static_cast<std::ptrdiff_t>(s.first_block),
                    records_.begin() + static_cast<std::ptrdiff_t>(s.first_block + s.shard.blocks()), nullptr));
        return n;
    }
    [[nodiscard]] bool same_gradients() const noexcept { return !differs_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::size_t longest_record() const noexcept
    {
        std::size_t longest = 0;
        for (tracked_shard const& s : shards)
            if (s.shard.size() != 0)
                longest = std::max(longest, s.shard.record_bytes_at_most(s.shard.length(0)));
        return longest;
    }

    // What lay_out() allocates for so many ranges.
    [[nodiscard]] std::size_t memory_bytes(std::size_t ranges) const noexcept
    {
        std::size_t blocks = 0;
        for (tracked_shard const& s : shards)
            blocks += s.shard.blocks();
        return blocks * (sizeof(grad_squares) + sizeof(std::byte*) + (keep_checksums ? sizeof(std::uint64_t) : 0)) +
               most_passes * (ranges + 1) * (sizeof(entry) + sizeof(std::size_t)) + ranges * sizeof(block_range);
    }
    // After shards were added, or placed elsewhere. `ranges` is what the CPU has, in order, as long as each is to be
    // described. Allocates.
    void lay_out(std::vector<block_range> ranges)
    {
        std::size_t blocks = 0;
        for (tracked_shard& s : shards) {
            s.first_block = blocks;
            s.cpu_elems = 0;
            blocks += s.shard.blocks();
        }
        elements_ = 0;
        std::size_t cpu_blocks = 0;
        first_range_.assign(shards.size() + 1, 0);
        for (block_range const& range : ranges) {
            tracked_shard& s = shards[range.shard];
            std::size_t const elems =
                std::min(s.shard.size(), range.end * norm_block_elems) - range.begin * norm_block_elems;
            s.cpu_elems += elems;
            elements_ += elems;
            cpu_blocks += range.blocks();
            ++first_range_[range.shard + 1];
        }
        for (std::size_t i = 0; i < shards.size(); ++i)
            first_range_[i + 1] += first_range_[i];
        squares_.assign(blocks, {});
        records_.assign(blocks, nullptr);
        checksums_.assign(keep_checksums ? blocks : 0, 0);
        entries_.resize(most_passes * (ranges.size() + 1));
        left_ = std::vector<std::atomic<std::size_t>>(entries_.size());
        ranges_ = std::move(ranges);
        std::size_t const threads = cpu_.threads();
        at_once_ = std::clamp<std::size_t>(cpu_blocks / (16 * threads), 1, cpu_.max_chunk_elems() / norm_block_elems);
    }
    [[nodiscard]] std::vector<block_range> const& ranges() const noexcept { return ranges_; }
    // The numbers of the ranges of a shard: from this on, up to that of the next shard.
    [[nodiscard]] std::size_t first_range(std::size_t shard) const noexcept { return first_range_[shard]; }
    // What a device has found about a block of its own, by its number on the line of all blocks.
    void set_result(std::size_t block, grad_squares const& squares, bool recorded) noexcept
    {
        squares_[block] = squares;
        records_[block] = recorded ? &on_device_ : nullptr;
    }
    [[nodiscard]] grad_squares const& squares(std::size_t block) const noexcept { return squares_[block]; }
    void make_journal(std::size_t budget_bytes) { journal_.allocate(cpu_, budget_bytes, longest_record()); }

    // Before the first pass of a step. Only while the line is idle.
    void begin() noexcept
    {
        line_.take(at_once_);
        begin_ = line_.added();
        entry_count_.store(0, std::memory_order_relaxed);
        std::fill(busy_.begin(), busy_.end(), busy_time{});
        hopeless_.store(false, std::memory_order_relaxed);
        differs_.store(false, std::memory_order_relaxed);
    }
    void forget_records() noexcept
    {
        journal_.clear();
        std::fill(records_.begin(), records_.end(), nullptr);
    }

    // Under the line's lock, or where nobody else adds: one more shard for the team to work on.
    [[nodiscard]] std::size_t describe(std::size_t shard, block_pass pass) noexcept
    {
        std::size_t blocks = 0;
        for (std::size_t range = first_range_[shard]; range < first_range_[shard + 1]; ++range)
            blocks += describe_range(range, pass);
        return blocks;
    }
    [[nodiscard]] std::size_t describe_range(std::size_t range, block_pass pass) noexcept
    {
        std::size_t const count = entry_count_.load(std::memory_order_relaxed);
        std::size_t const begin = count == 0 ? line_.added() : entries_[count - 1].end;
        std::size_t const blocks = ranges_[range].blocks();
        entries_[count] = {range, pass, begin, begin + blocks};
        left_[count].store(blocks, std::memory_order_relaxed);
        entry_count_.store(count + 1, std::memory_order_release);
        return blocks;
    }
    // Something to do that is nothing: so that the line comes to its end.
    [[nodiscard]] std::size_t describe_nothing() noexcept
    {
        std::size_t const count = entry_count_.load(std::memory_order_relaxed);
        std::size_t const begin = count == 0 ? line_.added() : entries_[count - 1].end;
        entries_[count] = {ranges_.size(), block_pass::measure, begin, begin + 1};
        entry_count_.store(count + 1, std::memory_order_release);
        return 1;
    }
    // How long the threads have worked since begin(), on average. While the line is idle.
    [[nodiscard]] double busy_seconds() const noexcept
    {
        std::chrono::steady_clock::duration all{};
        for (busy_time const& each : busy_)
            all += each.time;
        return std::chrono::duration<double>(all).count() / static_cast<double>(busy_.size());
    }
    // The share of what was described that is done.
    [[nodiscard]] double progress() const noexcept
    {
        std::size_t const done = line_.done() - begin_; // first: what is added meanwhile must not lag behind it
        std::size_t const all = line_.added() - begin_;
        return all == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(all);
    }
    // All shards that take part.
    [[nodiscard]] std::size_t describe_all(block_pass pass) noexcept
    {
        std::size_t blocks = 0;
        for (std::size_t i = 0; i < shards.size(); ++i)
            if (!shards[i].left_out)
                blocks += describe(i, pass);
        return blocks;
    }

    [[nodiscard]] bool nothing_described() const noexcept { return entry_count_.load(std::memory_order_relaxed) == 0; }
    // Of all blocks of the shards that took part, added in order.
    [[nodiscard]] grad_squares total() const noexcept
    {
        float_mode_scope const mode(subnormals::kept);
        grad_squares sum;
        for (tracked_shard const& s : shards)
            if (!s.left_out)
                add_blocks(squares_.data() + s.first_block, s.shard.blocks(), sum);
        return sum;
    }
    // The first block of a shard that has a gradient that is not finite; its number of blocks, if none has.
    [[nodiscard]] std::size_t first_nonfinite_block(tracked_shard const& s) const noexcept
    {
        std::size_t b = 0;
        while (b < s.shard.blocks() && squares_[s.first_block + b].nonfinite == 0)
            ++b;
        return b;
    }
    // How many elements of a shard the CPU has stepped with a record.
    [[nodiscard]] std::size_t recorded_elements(tracked_shard const& s) const noexcept
    {
        std::size_t elements = 0;
        for (std::size_t b = 0; b < s.shard.blocks(); ++b)
            if (records_[s.first_block + b] != nullptr && records_[s.first_block + b] != &on_device_)
                elements += s.shard.length(b);
        return elements;
    }

private:
    // That begin() is followed by, over a range: the first, back, again, what had no room, and back after all.
    static constexpr std::size_t most_passes = 5;
    struct entry {
        std::size_t range;
        block_pass pass;
        std::size_t begin; // on the line
        std::size_t end;
    };

    static executor with_team(executor const& cpu)
    {
        if (cpu.team() != nullptr)
            return cpu;
        return executor(std::make_shared<team>(team_options{.threads = 1, .bind = binding::none}), cpu.tier());
    }

    void work(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        if (on_weights) { // calls a device's code, which must not run in our floating-point mode
            work_through(member, begin, end);
        } else {
            float_mode_scope const mode(subnormals::flushed); // set once for all shards
            work_through(member, begin, end);
        }
    }
    void work_through(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        scratch_block scratch;
        entry const* const last = entries_.data() + entry_count_.load(std::memory_order_acquire);
        entry const* at = std::upper_bound(static_cast<entry const*>(entries_.data()), last, begin,
                                           [](std::size_t piece, entry const& e) { return piece < e.end; });
        auto const started = std::chrono::steady_clock::now();
        for (; begin < end; ++at) {
            std::size_t const stop = std::min(end, at->end);
            if (at->range == ranges_.size()) {
                begin = stop;
                continue;
            }
            block_range const& range = ranges_[at->range];
            run(member, shards[range.shard], at->pass, range.begin + begin - at->begin, range.begin + stop - at->begin,
                scratch);
            if (on_weights && !only_reads(at->pass) &&
                left_[static_cast<std::size_t>(at - entries_.data())].fetch_sub(
                    stop - begin, std::memory_order_acq_rel) == stop - begin)
                on_weights(at->range);
            begin = stop;
        }
        busy_[member].time += std::chrono::steady_clock::now() - started;
    }

    void run(unsigned member, tracked_shard const& s, block_pass pass, std::size_t begin, std::size_t end,
             scratch_block& scratch) noexcept
    {
        bool const first = is_first(pass);
        group_step const& old = speculated[s.group];
        group_step const& now = pass == block_pass::speculate ? old : settled[s.group];
        kernel::memory_access const how{elements_ >= stream_weight_out_from_elems, cpu_.prefetch_bytes()};
        bool const summed = s.summed != 0;
        for (std::size_t b = begin; b < end; ++b) {
            grad_squares& squares = squares_[s.first_block + b];
            std::byte*& record = records_[s.first_block + b];
            if ((pass == block_pass::rest && record != nullptr) || (pass == block_pass::undo && record == nullptr))
                continue;
            if (pass == block_pass::rest && !keep_records && !summed && !now.rules.zero_nonfinite &&
                !now.rules.limited) { // as many blocks as go together
                std::size_t stop = b + 1;
                while (stop < end && records_[s.first_block + stop] == nullptr)
                    ++stop;
                s.shard.step(b, stop, now.c, how);
                b = stop - 1;
                continue;
            }
            if ((pass == block_pass::undo || pass == block_pass::redo) && record != nullptr) {
                s.shard.undo(b, s.shard.gradient(b, summed, old.rules, false, scratch), old.c, record, scratch);
                record = nullptr;
                if (pass == block_pass::undo) {
                    std::size_t const from = b * norm_block_elems;
                    s.shard.round_weights(from, from + s.shard.length(b));
                    continue;
                }
            }
            if (pass == block_pass::compare) {
                if (s.shard.gradient_checksum(b, summed) != checksums_[s.first_block + b])
                    differs_.store(true, std::memory_order_relaxed);
                continue;
            }
            offload_shard::ready_gradient const g =
                s.shard.gradient(b, summed, only_reads(pass) ? gradient_rules{} : now.rules, first, scratch);
            if (first)
                squares = g.squares;
            if (pass == block_pass::measure)
                continue;
            if (pass == block_pass::speculate) {
                // What is to be skipped need not be stepped first.
                if (now_skips && g.squares.nonfinite != 0)
                    hopeless_.store(true, std::memory_order_relaxed);
                if (hopeless_.load(std::memory_order_relaxed))
                    continue;
            }
            if (pass == block_pass::speculate || keep_records) {
                if (std::byte* const room = journal_.room(member, s.shard.record_bytes_at_most(s.shard.length(b)))) {
                    journal_.wrote(member, s.shard.step_recorded(b, g, now.c, how, room));
                    record = room;
                    if (keep_checksums)
                        checksums_[s.first_block + b] = s.shard.gradient_checksum(b, summed);
                    continue;
                }
                if (pass == block_pass::speculate || waits_for_room)
                    continue;
            }
            s.shard.step(b, g, now.c, how);
        }
    }

public:
    bool now_skips = false; // whether a gradient that is not finite makes this step one that is skipped

private:
    executor cpu_;
    journal journal_;
    std::vector<grad_squares> squares_;    // of each block
    std::vector<std::byte*> records_;      // of each block that was stepped with one
    std::vector<std::uint64_t> checksums_; // of each block's gradient, then
    std::vector<block_range> ranges_;
    std::vector<std::size_t> first_range_; // of each shard, and the end
    std::vector<entry> entries_;
    std::vector<std::atomic<std::size_t>> left_; // blocks of each entry
    struct alignas(64) busy_time {
        std::chrono::steady_clock::duration time{};
    };
    std::vector<busy_time> busy_;         // of each member of the team
    static inline std::byte on_device_{}; // the record of a block that the CPU has not
    std::atomic<std::size_t> entry_count_{0};
    std::atomic<bool> hopeless_{false};
    std::atomic<bool> differs_{false};
    std::size_t elements_ = 0;
    std::size_t at_once_ = 1;
    std::size_t begin_ = 0; // of this step, on the line
    work_line line_;        // last: it ends before what it works on
};

} // namespace detail
ADAMANT_END_NAMESPACE
