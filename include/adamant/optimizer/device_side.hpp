// SPDX-License-Identifier: Apache-2.0
// The passes of a step over the part of an optimizer's shards that lies on a device, and what crosses the link for
// them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/optimizer/device_pieces.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class device_side : public device_pieces {
public:
    using device_pieces::device_pieces;

    // Whether it was told to step since records were forgotten, and makes none: then there may be no way back.
    [[nodiscard]] bool stepped_for_good() const noexcept { return stepped_for_good_; }

    // The first pass over a shard's pieces, once their gradients are there. Without records nothing is stepped on an
    // assumption.
    void submit(std::size_t shard, block_pass pass)
    {
        pass = first_pass(pass);
        auto const [from, to] = pieces_of(shard);
        list_.clear();
        for (std::size_t i = from; i < to; ++i) {
            copy_gradient_up(pieces_[i]);
            list_.push_back(static_cast<std::uint32_t>(i));
        }
        run_listed(pass);
    }
    // Of all shards that take part; in portions, so that work begins before the last gradient is there.
    void submit_all(block_pass pass)
    {
        pass = first_pass(pass);
        constexpr std::size_t portion_elems = std::size_t{1} << 24;
        list_.clear();
        std::size_t elems = 0;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            copy_gradient_up(pieces_[i]);
            list_.push_back(static_cast<std::uint32_t>(i));
            elems += pieces_[i].on.elems;
            if (elems >= portion_elems) {
                run_listed(pass);
                list_.clear();
                elems = 0;
            }
        }
        run_listed(pass);
    }
    // A later pass over all that take part.
    void run(block_pass pass)
    {
        if (pass == block_pass::undo && !with_records_) // nothing was stepped
            return;
        list_.clear();
        for (std::size_t i = 0; i < pieces_.size(); ++i)
            if (!passes_.shards[pieces_[i].shard].left_out)
                list_.push_back(static_cast<std::uint32_t>(i));
        run_listed(pass);
    }

    // The gradient of a range that the CPU has comes down, and then `arrived` is called with its number, in a thread of
    // the device's.
    template <class Arrived>
    void fetch_gradient(std::size_t range, Arrived const& arrived)
    {
        block_range const& r = passes_.ranges()[range];
        auto const [begin, elems] = elements_of(r);
        offload_shard const& s = passes_.shards[r.shard].shard;
        std::size_t const at = begin * s.elem_bytes(s.grad);
        device_->copy_down(s.data(s.grad) + at, arrays_[r.shard].grad + at, elems * s.elem_bytes(s.grad));
        device_->call(device_lane::down, arrived);
    }
    // The weights of a range that the CPU has go up, if they are wanted there. From any thread.
    void send_weights(std::size_t range)
    {
        block_range const& r = passes_.ranges()[range];
        offload_shard const& s = passes_.shards[r.shard].shard;
        if (!has_arrays(r.shard) || !s.has_weight_out())
            return;
        auto const [begin, elems] = elements_of(r);
        std::size_t const at = begin * s.elem_bytes(s.weight_out);
        device_->copy_up(arrays_[r.shard].weight_out + at, s.data(s.weight_out) + at,
                         elems * s.elem_bytes(s.weight_out));
    }

    // The same, after which the passes know what this side has found. compare: the sums that they know stay, and the
    // result is whether those of this side are the same.
    bool wait_for_results(bool compare = false)
    {
        if (part_ != nullptr)
            part_->fetch(squares_, recorded_);
        wait();
        bool same = true;
        for (std::size_t i = 0; i < pieces_.size(); ++i) {
            piece const& p = pieces_[i];
            tracked_shard const& s = passes_.shards[p.shard];
            std::size_t const first = s.first_block + p.begin / norm_block_elems;
            for (std::size_t b = 0; b < p.on.blocks(); ++b) {
                grad_squares const& found = squares_[first_result_[i] + b];
                grad_squares const& known = passes_.squares(first + b);
                same = same && (s.left_out || (found.sum == known.sum && found.nonfinite == known.nonfinite));
                passes_.set_result(first + b, compare ? known : found,
                                   !with_records_ || recorded_[first_result_[i] + b] != 0);
            }
        }
        return same;
    }
    void forget_records() noexcept
    {
        stepped_for_good_ = false;
        answer_by_ = deadline();
        if (part_ != nullptr)
            part_->forget_records();
    }

    // Drops what has not begun. False where the device does not answer, or cannot go on. One that was waited for in
    // vain is not waited for as long again.
    [[nodiscard]] bool stop() noexcept
    {
        if (device_ == nullptr)
            return true;
        auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        bool const answers = device_->reset(is_late_ ? std::min(soon, deadline()) : deadline());
        is_late_ = !answers;
        return answers;
    }
    // Throws device_error where something has failed, or the step takes longer than a device is given.
    void require_answer()
    {
        if (!device_->wait_until(device_->mark(device_lane::down), std::chrono::steady_clock::now()) &&
            std::chrono::steady_clock::now() > answer_by_)
            throw_late(*device_, device_lane::down);
    }
    // After that: takes back all that there are records of, and has the weights on the device be the params' again.
    // False where the device fails.
    [[nodiscard]] bool take_back() noexcept
    {
        if (device_ == nullptr)
            return true;
        try {
            list_.clear();
            for (std::size_t i = 0; i < pieces_.size(); ++i)
                list_.push_back(static_cast<std::uint32_t>(i));
            if (with_records_)
                run_listed(block_pass::undo);
            for (std::size_t range = 0; range < passes_.ranges().size(); ++range)
                send_weights(range);
            wait_for_results();
            return true;
        } catch (...) {
            (void)device_->reset(std::chrono::steady_clock::now());
            return false;
        }
    }

    // The other way, with weights made of the params.
    void copy_state_from_home()
    {
        for (piece const& p : pieces_)
            copy_state_up(*device_, p, false);
        for (std::size_t range = 0; range < passes_.ranges().size(); ++range)
            send_weights(range);
        if (part_ != nullptr) {
            device_->follow(device_lane::work, device_->mark(device_lane::up));
            part_->round_weights();
        }
        wait();
    }

    // For accumulate(): this side's part of the shard's gradient is there, and the CPU's has come down. Nothing has
    // been added up yet.
    void bring_gradients(std::size_t shard)
    {
        auto const [from, to] = pieces_of(shard);
        for (std::size_t i = from; i < to; ++i)
            copy_gradient_up(pieces_[i]);
        if (has_arrays(shard))
            for (std::size_t r = passes_.first_range(shard); r < passes_.first_range(shard + 1); ++r)
                fetch_gradient(r, [] {});
        wait();
    }
    [[nodiscard]] bool has_pieces_of(std::size_t shard) const noexcept
    {
        auto const [from, to] = pieces_of(shard);
        return from != to;
    }
    // Then they are. Returns when it is done; where it throws, some may have been, and others not.
    void accumulate(std::size_t shard, bool first)
    {
        auto const [from, to] = pieces_of(shard);
        for (std::size_t i = from; i < to; ++i)
            part_->accumulate(static_cast<std::uint32_t>(i), first);
        wait();
    }

    // As offload_shard::first_nonfinite(), of a block that this side has; absent where the CPU has it.
    [[nodiscard]] std::optional<std::size_t> first_nonfinite(std::size_t shard, std::size_t block)
    {
        namespace arrays = shard_array;
        tracked_shard const& s = passes_.shards[shard];
        auto const [from, to] = pieces_of(shard);
        for (std::size_t i = from; i < to; ++i) {
            piece const& p = pieces_[i];
            std::size_t const first = p.begin / norm_block_elems;
            if (block < first || block >= first + p.on.blocks())
                continue;
            std::size_t const n = s.shard.length(block);
            std::size_t const at = (block - first) * norm_block_elems;
            // Not on the stack: what is copied late must not write there.
            scratch_block& grad = scratch_->first;
            scratch_block& sum = scratch_->second;
            device_->copy_down(grad.grad, p.on.arrays[arrays::grad] + at * s.shard.elem_bytes(arrays::grad),
                               n * s.shard.elem_bytes(arrays::grad));
            if (s.summed != 0)
                device_->copy_down(sum.grad,
                                   p.on.arrays[arrays::accumulator] + at * s.shard.elem_bytes(arrays::accumulator),
                                   n * s.shard.elem_bytes(arrays::accumulator));
            wait();
            return block * norm_block_elems +
                   s.shard.with_gradient(grad.grad, sum.grad, n).first_nonfinite(0, s.summed != 0);
        }
        return std::nullopt;
    }

private:
    [[nodiscard]] block_pass first_pass(block_pass pass) const noexcept
    {
        return with_records_ ? pass : block_pass::measure;
    }
    void copy_gradient_up(piece const& p)
    {
        if (!is_given(p, shard_array::grad))
            device_->copy_up(p.on.arrays[shard_array::grad], home(p, shard_array::grad),
                             p.on.elems * size_bytes(p.on.types[shard_array::grad]));
    }
    void run_listed(block_pass pass)
    {
        if (list_.empty())
            return;
        summed_.resize(pieces_.size());
        for (std::uint32_t const i : list_)
            summed_[i] = passes_.shards[pieces_[i].shard].summed != 0;
        device_->follow(device_lane::work, device_->mark(device_lane::up));
        part_->run({.pass = pass,
                    .pieces = list_,
                    .speculated = passes_.speculated,
                    .settled = passes_.settled,
                    .summed = summed_,
                    .keep_records = passes_.keep_records && with_records_});
        if (only_reads(pass))
            return;
        stepped_for_good_ = stepped_for_good_ || !with_records_;
        bool first = true;
        for (std::uint32_t const i : list_) {
            piece const& p = pieces_[i];
            if (is_given(p, shard_array::weight_out) || p.on.types[shard_array::weight_out] == dtype::none)
                continue;
            if (first)
                device_->follow(device_lane::down, device_->mark(device_lane::work));
            first = false;
            device_->copy_down(home(p, shard_array::weight_out), p.on.arrays[shard_array::weight_out],
                               p.on.elems * size_bytes(p.on.types[shard_array::weight_out]));
        }
    }
    // The numbers of a shard's pieces.
    [[nodiscard]] std::pair<std::size_t, std::size_t> pieces_of(std::size_t shard) const noexcept
    {
        auto const from = std::lower_bound(pieces_.begin(), pieces_.end(), shard,
                                           [](piece const& p, std::size_t i) { return p.shard < i; });
        auto const to =
            std::upper_bound(from, pieces_.end(), shard, [](std::size_t i, piece const& p) { return i < p.shard; });
        return {static_cast<std::size_t>(from - pieces_.begin()), static_cast<std::size_t>(to - pieces_.begin())};
    }
    [[nodiscard]] std::pair<std::size_t, std::size_t> elements_of(block_range const& r) const noexcept
    {
        std::size_t const begin = r.begin * norm_block_elems;
        return {begin, std::min(passes_.shards[r.shard].shard.size(), r.end * norm_block_elems) - begin};
    }

    bool stepped_for_good_ = false;
    std::chrono::steady_clock::time_point answer_by_ = {}; // for gradients that are to come down
    std::vector<std::uint8_t> summed_;                     // of each piece
    std::vector<std::uint32_t> list_;                      // of the pass that is being enqueued
    std::unique_ptr<std::pair<scratch_block, scratch_block>> scratch_ =
        std::make_unique<std::pair<scratch_block, scratch_block>>();
};

} // namespace detail
ADAMANT_END_NAMESPACE
