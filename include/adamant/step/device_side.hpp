// SPDX-License-Identifier: Apache-2.0
// The part of an optimizer's shards that lies on a device: its memory, its passes, and what crosses the link.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>
#include <adamant/split/placement.hpp>
#include <adamant/step/offload_step.hpp>

ADAMANT_BEGIN_NAMESPACE

// Where a shard's gradient is made and its weights are wanted, if that is on a device: arrays of the shard's size and
// types in that device's memory, the caller's. Then the shard's own arrays of these are where the CPU's part of them
// passes through, pinned memory at best. Without, gradients and weights are in host memory, as for a CPU alone.
struct device_arrays {
    device_ptr grad;
    device_ptr weight_out; // null for a shard without
};

namespace detail {

class device_side {
public:
    explicit device_side(offload_passes& passes) : passes_(passes) {}
    device_side(device_side const&) = delete;
    device_side& operator=(device_side const&) = delete;
    ~device_side()
    {
        if (device_ == nullptr)
            return;
        part_.reset();
        for (piece const& p : pieces_)
            device_->release(p.memory);
    }

    // Whether there is one, with a part of the shards or with gradients of the CPU's part.
    [[nodiscard]] bool there() const noexcept { return device_ != nullptr; }
    [[nodiscard]] adamant::device const& device() const noexcept { return *device_; }
    [[nodiscard]] bool has_pieces() const noexcept { return !pieces_.empty(); }
    [[nodiscard]] std::size_t elements() const noexcept
    {
        std::size_t all = 0;
        for (piece const& p : pieces_)
            all += p.on.elems;
        return all;
    }
    void set_timeout(double seconds) noexcept { timeout_s_ = seconds; }

    // Of shard number `shard`; before place().
    void set_arrays(std::size_t shard, device_arrays const& arrays)
    {
        arrays_.resize(std::max(arrays_.size(), shard + 1));
        arrays_[shard] = arrays;
    }
    [[nodiscard]] bool has_arrays(std::size_t shard) const noexcept
    {
        return shard < arrays_.size() && arrays_[shard].grad;
    }

    // Moves what has to be moved. Throws what the device does, with everything where it was.
    void place(std::shared_ptr<adamant::device> to, std::vector<shard_piece> const& where)
    {
        std::vector<piece> next;
        std::vector<std::size_t> fresh; // of next
        bool const same_device = to == device_;
        adamant::device* const target = to.get();
        try {
            for (shard_piece const& w : where) {
                if (w.on != side::device)
                    continue;
                auto const kept =
                    std::lower_bound(pieces_.begin(), pieces_.end(), w, [](piece const& p, shard_piece const& q) {
                        return std::pair(p.shard, p.begin) < std::pair(q.shard, q.begin);
                    });
                if (same_device && kept != pieces_.end() && kept->shard == w.shard && kept->begin == w.begin &&
                    kept->on.elems == w.elems) {
                    next.push_back(*kept);
                    continue;
                }
                next.push_back(describe(w));
                fresh.push_back(next.size() - 1);
                next.back().memory = target->allocate(own_bytes(next.back()));
                give_memory(next.back());
            }
            std::vector<device_piece> described;
            for (piece const& p : next)
                described.push_back(p.on);
            std::unique_ptr<device_part> part = next.empty() ? nullptr : target->make_part(std::move(described));
            // What is on the device now goes home, from where it is taken for the other places.
            if (!pieces_.empty())
                copy_home(true);
            for (std::size_t const i : fresh)
                copy_state_up(*target, next[i], true);
            if (part != nullptr) { // so that weights may come down from any piece at any time
                target->follow(device_lane::work, target->mark(device_lane::up));
                part->round_weights();
            }
            if (target != nullptr)
                wait_all(*target);
            part_ = std::move(part);
        } catch (...) {
            if (target != nullptr)
                (void)target->reset(deadline());
            for (std::size_t const i : fresh)
                target->release(next[i].memory);
            throw;
        }
        std::set<std::uint64_t> kept;
        for (piece const& p : next)
            kept.insert(p.memory.address);
        for (piece const& p : pieces_)
            if (!same_device || !kept.contains(p.memory.address))
                device_->release(p.memory);
        pieces_ = std::move(next);
        device_ = std::move(to);
        first_result_.assign(1, 0);
        for (piece const& p : pieces_)
            first_result_.push_back(first_result_.back() + p.on.blocks());
        squares_.assign(first_result_.back(), {});
        recorded_.assign(first_result_.back(), 0);
        summed_.assign(pieces_.size(), 0);
        list_.reserve(pieces_.size());
    }
    // What place() allocates on the device for these.
    [[nodiscard]] std::size_t bytes_for(adamant::device const& on, std::vector<shard_piece> const& where) const
    {
        std::size_t bytes = 0;
        std::vector<device_piece> described;
        for (shard_piece const& w : where)
            if (w.on == side::device) {
                piece const p = describe(w);
                bytes += own_bytes(p);
                described.push_back(p.on);
            }
        return bytes + on.part_bytes(described);
    }

    // The blocks that stay with the CPU, in ranges that gradients come down in and weights go up.
    [[nodiscard]] std::vector<block_range> cpu_ranges() const
    {
        std::vector<block_range> ranges;
        auto piece_at = pieces_.begin();
        auto const add = [&](std::size_t shard, std::size_t begin, std::size_t end) {
            std::size_t const most = has_arrays(shard) ? chunk_blocks : std::max<std::size_t>(end - begin, 1);
            for (; begin < end; begin += std::min(most, end - begin))
                ranges.push_back({shard, begin, begin + std::min(most, end - begin)});
        };
        for (std::size_t i = 0; i < passes_.shards.size(); ++i) {
            std::size_t at = 0;
            for (; piece_at != pieces_.end() && piece_at->shard == i; ++piece_at) {
                add(i, at, piece_at->begin / norm_block_elems);
                at = piece_at->begin / norm_block_elems + piece_at->on.blocks();
            }
            add(i, at, passes_.shards[i].shard.blocks());
        }
        return ranges;
    }

    // The first pass over a shard's pieces, once their gradients are there.
    void submit(std::size_t shard, block_pass pass)
    {
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

    // Until all that was enqueued is done; throws device_error where it is not by the timeout, or fails.
    void wait() { wait_all(*device_); }
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
                passes_.set_result(first + b, compare ? known : found, recorded_[first_result_[i] + b] != 0);
            }
        }
        return same;
    }
    void forget_records() noexcept
    {
        if (part_ != nullptr)
            part_->forget_records();
    }

    // Drops what has not begun. False where the device does not answer, or cannot go on.
    [[nodiscard]] bool stop() noexcept
    {
        return device_ == nullptr ||
               device_->reset(std::min(deadline(), std::chrono::steady_clock::now() + std::chrono::seconds(1)));
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

    // Params and moments of this side into the shards' own arrays. Throws device_error.
    void copy_home(bool with_sums = false)
    {
        using arrays = offload_shard;
        for (piece const& p : pieces_)
            for (auto const which : {arrays::param, arrays::exp_avg, arrays::exp_avg_sq, arrays::accumulator}) {
                tracked_shard const& s = passes_.shards[p.shard];
                if (which != arrays::accumulator || (with_sums && s.summed != 0 && s.shard.has_accumulator()))
                    device_->copy_down(home(p, which), p.on.arrays[which], p.on.elems * s.shard.elem_bytes(which));
            }
        wait();
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

    // This side's part of the shard's gradient is added up; returns when it is done.
    void accumulate(std::size_t shard, bool first)
    {
        auto const [from, to] = pieces_of(shard);
        for (std::size_t i = from; i < to; ++i)
            copy_gradient_up(pieces_[i]);
        device_->follow(device_lane::work, device_->mark(device_lane::up));
        for (std::size_t i = from; i < to; ++i)
            part_->accumulate(static_cast<std::uint32_t>(i), first);
        if (has_arrays(shard))
            for (std::size_t r = passes_.first_range(shard); r < passes_.first_range(shard + 1); ++r)
                fetch_gradient(r, [] {});
        wait();
    }

    // As offload_shard::first_nonfinite(), of a block that this side has; absent where the CPU has it.
    [[nodiscard]] std::optional<std::size_t> first_nonfinite(std::size_t shard, std::size_t block)
    {
        using arrays = offload_shard;
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
            offload_shard const here({nullptr, grad.grad, nullptr, nullptr, nullptr}, sum.grad, n, p.on.types,
                                     p.on.host_kernels);
            return block * norm_block_elems + here.first_nonfinite(0, s.summed != 0);
        }
        return std::nullopt;
    }

private:
    // Gradients come down, and weights go up, in so many blocks at a time: 2 MiB of 16-bit numbers.
    static constexpr std::size_t chunk_blocks = 256;

    struct piece {
        std::size_t shard;
        std::size_t begin; // in the shard
        device_piece on;
        device_ptr memory = {}; // of the arrays that are ours
    };

    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(timeout_s_));
    }
    void wait_all(adamant::device& on) const
    {
        auto const until = deadline();
        for (device_lane const lane : {device_lane::up, device_lane::work, device_lane::down})
            if (!on.wait_until(on.mark(lane), until))
                throw device_error("adamant: " + on.name() + " has not come to the end of its lane '" + name(lane) +
                                   "' in " + text(timeout_s_) +
                                   " s; it seems to have stopped answering (see device_timeout_s in the options)");
    }

    [[nodiscard]] piece describe(shard_piece const& w) const
    {
        tracked_shard const& s = passes_.shards[w.shard];
        piece p{w.shard, w.begin, {}};
        for (std::size_t i = 0; i < 6; ++i)
            p.on.types[i] = s.shard.type(static_cast<offload_shard::array>(i));
        p.on.elems = w.elems;
        p.on.group = s.group;
        p.on.host_kernels = s.shard.kernels();
        return p;
    }
    // Whether the array is the caller's.
    [[nodiscard]] bool is_given(piece const& p, std::size_t array) const noexcept
    {
        return has_arrays(p.shard) && (array == offload_shard::grad || array == offload_shard::weight_out);
    }
    static constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 255) / 256 * 256; }
    [[nodiscard]] std::size_t own_bytes(piece const& p) const noexcept
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < 6; ++i)
            if (!is_given(p, i))
                bytes += aligned(p.on.elems * size_bytes(p.on.types[i]));
        return bytes;
    }
    void give_memory(piece& p) const
    {
        device_ptr at = p.memory;
        for (std::size_t i = 0; i < 6; ++i) {
            std::size_t const elem_bytes = size_bytes(p.on.types[i]);
            if (is_given(p, i)) {
                device_ptr const base = i == offload_shard::grad ? arrays_[p.shard].grad : arrays_[p.shard].weight_out;
                p.on.arrays[i] = elem_bytes == 0 ? device_ptr{} : base + p.begin * elem_bytes;
            } else if (elem_bytes != 0) {
                p.on.arrays[i] = at;
                at = at + aligned(p.on.elems * elem_bytes);
            }
        }
    }
    [[nodiscard]] std::byte* home(piece const& p, offload_shard::array which) const noexcept
    {
        offload_shard const& s = passes_.shards[p.shard].shard;
        return s.data(which) + p.begin * s.elem_bytes(which);
    }
    void copy_state_up(adamant::device& on, piece const& p, bool with_sums) const
    {
        using arrays = offload_shard;
        tracked_shard const& s = passes_.shards[p.shard];
        for (auto const which : {arrays::param, arrays::exp_avg, arrays::exp_avg_sq, arrays::accumulator})
            if (which != arrays::accumulator || (with_sums && s.summed != 0 && s.shard.has_accumulator()))
                on.copy_up(p.on.arrays[which], home(p, which), p.on.elems * s.shard.elem_bytes(which));
    }
    void copy_gradient_up(piece const& p)
    {
        if (!is_given(p, offload_shard::grad))
            device_->copy_up(p.on.arrays[offload_shard::grad], home(p, offload_shard::grad),
                             p.on.elems * size_bytes(p.on.types[offload_shard::grad]));
    }
    void run_listed(block_pass pass)
    {
        if (list_.empty())
            return;
        for (std::uint32_t const i : list_)
            summed_[i] = passes_.shards[pieces_[i].shard].summed != 0;
        device_->follow(device_lane::work, device_->mark(device_lane::up));
        part_->run({.pass = pass,
                    .pieces = list_,
                    .speculated = passes_.speculated,
                    .settled = passes_.settled,
                    .summed = summed_,
                    .keep_records = passes_.keep_records});
        if (only_reads(pass))
            return;
        bool first = true;
        for (std::uint32_t const i : list_) {
            piece const& p = pieces_[i];
            if (is_given(p, offload_shard::weight_out) || p.on.types[offload_shard::weight_out] == dtype::none)
                continue;
            if (first)
                device_->follow(device_lane::down, device_->mark(device_lane::work));
            first = false;
            device_->copy_down(home(p, offload_shard::weight_out), p.on.arrays[offload_shard::weight_out],
                               p.on.elems * size_bytes(p.on.types[offload_shard::weight_out]));
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

    offload_passes& passes_;
    std::shared_ptr<adamant::device> device_;
    std::unique_ptr<device_part> part_;
    std::vector<piece> pieces_; // in the order of shards
    std::vector<device_arrays> arrays_;
    std::vector<std::size_t> first_result_; // of each piece, and the end
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    std::vector<std::uint8_t> summed_;
    std::vector<std::uint32_t> list_; // of the pass that is being enqueued
    std::unique_ptr<std::pair<scratch_block, scratch_block>> scratch_ =
        std::make_unique<std::pair<scratch_block, scratch_block>>();
    double timeout_s_ = 300;
};

} // namespace detail
ADAMANT_END_NAMESPACE
