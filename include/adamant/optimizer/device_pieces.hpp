// SPDX-License-Identifier: Apache-2.0
// Which pieces of an optimizer's shards lie on a device: their memory there, and how they come and go.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>
#include <adamant/optimizer/offload_step.hpp>
#include <adamant/split/placement.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class device_pieces {
public:
    explicit device_pieces(offload_passes& passes) : passes_(passes) {}
    device_pieces(device_pieces const&) = delete;
    device_pieces& operator=(device_pieces const&) = delete;
    ~device_pieces()
    {
        if (device_ == nullptr)
            return;
        part_.reset();
        for (piece const& p : pieces_)
            device_->release(p.memory);
        device_->leave(this);
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
    // Before place().
    void set_options(double timeout_s, bool with_records) noexcept
    {
        timeout_s_ = timeout_s;
        with_records_ = with_records;
    }
    [[nodiscard]] bool with_records() const noexcept { return with_records_; }

    // Of shard number `shard`; before place(). None: gradients are in host memory.
    void set_arrays(std::size_t shard, device_arrays const& arrays)
    {
        arrays_.resize(std::max(arrays_.size(), shard + 1));
        arrays_[shard] = arrays;
    }
    [[nodiscard]] bool has_arrays(std::size_t shard) const noexcept
    {
        return shard < arrays_.size() && arrays_[shard].grad;
    }

    [[nodiscard]] bool has_arrays() const noexcept
    {
        return std::any_of(arrays_.begin(), arrays_.end(), [](device_arrays const& a) { return bool(a.grad); });
    }
    void forget_arrays() noexcept { arrays_.clear(); }

    // Moves what has to be moved. Throws what the device does, with everything where it was; where not even that can
    // be, the CPU has everything.
    void place(std::shared_ptr<adamant::device> to, std::vector<shard_piece> const& where)
    {
        if (!pieces_.empty()) { // from there it is taken for the other places
            try {
                copy_home(true);
            } catch (...) {
                (void)device_->reset(deadline());
                throw;
            }
        }
        if (to != nullptr)
            to->claim(this);
        part_.reset(); // its records are of no more use, and the next one may need their memory
        std::vector<piece> next;
        std::vector<std::size_t> fresh;      // of next
        std::vector<std::size_t> results{0}; // where those of each piece of next begin
        std::vector<grad_squares> squares;   // with all that there is to come
        std::vector<std::uint8_t> recorded;
        std::set<std::uint64_t> kept;
        try {
            for (shard_piece const& w : where) {
                if (w.on != side::device)
                    continue;
                if (piece const* const same = to == device_ ? find(w) : nullptr) {
                    next.push_back(*same);
                    continue;
                }
                next.push_back(describe(w));
                fresh.push_back(next.size() - 1);
                next.back().memory = to->allocate(own_bytes(next.back()));
                give_memory(next.back());
            }
            for (piece const& p : next) {
                results.push_back(results.back() + p.on.blocks());
                if (to == device_)
                    kept.insert(p.memory.address);
            }
            squares.resize(results.back());
            recorded.resize(results.back());
            part_ = make_part(to.get(), next);
            for (std::size_t const i : fresh)
                copy_state_up(*to, next[i], true);
            if (part_ != nullptr) { // so that weights may come down from any piece at any time
                to->follow(device_lane::work, to->mark(device_lane::up));
                part_->round_weights();
            }
            if (to != nullptr)
                wait_all(*to);
        } catch (...) {
            if (to != nullptr)
                (void)to->reset(deadline());
            part_.reset();
            for (std::size_t const i : fresh)
                to->release(next[i].memory);
            if (to != nullptr && to != device_)
                to->leave(this);
            stay();
            throw;
        }
        for (piece const& p : pieces_)
            if (!kept.contains(p.memory.address))
                device_->release(p.memory);
        if (device_ != nullptr && to != device_)
            device_->leave(this);
        pieces_ = std::move(next);
        device_ = std::move(to);
        first_result_ = std::move(results);
        squares_ = std::move(squares);
        recorded_ = std::move(recorded);
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
        return bytes + on.part_bytes(described, with_records_);
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

    // Until all that was enqueued is done; throws device_error where it is not by the timeout, or fails.
    void wait() { wait_all(*device_); }
    // Params and moments of this side into the shards' own arrays. Throws device_error.
    void copy_home(bool with_sums = false)
    {
        namespace arrays = shard_array;
        for (piece const& p : pieces_)
            for (auto const which : {arrays::param, arrays::exp_avg, arrays::exp_avg_sq, arrays::accumulator}) {
                tracked_shard const& s = passes_.shards[p.shard];
                if (which != arrays::accumulator || (with_sums && s.summed != 0 && s.shard.has_accumulator()))
                    device_->copy_down(home(p, which), p.on.arrays[which], p.on.elems * s.shard.elem_bytes(which));
            }
        wait();
    }

protected:
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
                throw_late(on, lane);
    }
    [[noreturn]] void throw_late(adamant::device const& on, device_lane lane) const
    {
        is_late_ = true;
        throw device_error("adamant: " + on.name() + " has not come to the end of its lane '" + name(lane) + "' in " +
                           text(timeout_s_) +
                           " s; it seems to have stopped answering (see device_timeout_s in the options)");
    }

    [[nodiscard]] piece const* find(shard_piece const& w) const
    {
        auto const at = std::lower_bound(pieces_.begin(), pieces_.end(), w, [](piece const& p, shard_piece const& q) {
            return std::pair(p.shard, p.begin) < std::pair(q.shard, q.begin);
        });
        bool const same =
            at != pieces_.end() && at->shard == w.shard && at->begin == w.begin && at->on.elems == w.elems;
        return same ? &*at : nullptr;
    }
    [[nodiscard]] std::unique_ptr<device_part> make_part(adamant::device* on, std::vector<piece> const& pieces) const
    {
        std::vector<device_piece> described;
        for (piece const& p : pieces)
            described.push_back(p.on);
        return pieces.empty() ? nullptr : on->make_part(std::move(described), with_records_);
    }
    // With the pieces that there were, after place() has failed.
    void stay()
    {
        try {
            part_ = make_part(device_.get(), pieces_);
        } catch (std::exception const& again) {
            std::string const name = device_->name();
            for (piece const& p : pieces_)
                device_->release(p.memory);
            pieces_.clear();
            device_->leave(this);
            device_.reset();
            throw unavailable("adamant: shards were to move to or from " + name +
                              ", which failed, and so did going on as before (" + again.what() +
                              "): the CPU has all of them now, with nothing lost");
        }
    }
    [[nodiscard]] piece describe(shard_piece const& w) const
    {
        tracked_shard const& s = passes_.shards[w.shard];
        piece p{w.shard, w.begin, {}};
        for (std::size_t i = 0; i < 6; ++i)
            p.on.types[i] = s.shard.type(static_cast<shard_array::index>(i));
        p.on.elems = w.elems;
        p.on.group = s.group;
        p.on.format = &s.shard.format();
        return p;
    }
    // Whether the array is the caller's.
    [[nodiscard]] bool is_given(piece const& p, std::size_t array) const noexcept
    {
        return has_arrays(p.shard) && (array == shard_array::grad || array == shard_array::weight_out);
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
                device_ptr const base = i == shard_array::grad ? arrays_[p.shard].grad : arrays_[p.shard].weight_out;
                p.on.arrays[i] = elem_bytes == 0 ? device_ptr{} : base + p.begin * elem_bytes;
            } else if (elem_bytes != 0) {
                p.on.arrays[i] = at;
                at = at + aligned(p.on.elems * elem_bytes);
            }
        }
    }
    [[nodiscard]] std::byte* home(piece const& p, shard_array::index which) const noexcept
    {
        offload_shard const& s = passes_.shards[p.shard].shard;
        return s.data(which) + p.begin * s.elem_bytes(which);
    }
    void copy_state_up(adamant::device& on, piece const& p, bool with_sums) const
    {
        namespace arrays = shard_array;
        tracked_shard const& s = passes_.shards[p.shard];
        for (auto const which : {arrays::param, arrays::exp_avg, arrays::exp_avg_sq, arrays::accumulator})
            if (which != arrays::accumulator || (with_sums && s.summed != 0 && s.shard.has_accumulator()))
                on.copy_up(p.on.arrays[which], home(p, which), p.on.elems * s.shard.elem_bytes(which));
    }

    offload_passes& passes_;
    std::shared_ptr<adamant::device> device_;
    std::unique_ptr<device_part> part_;
    std::vector<piece> pieces_; // in the order of shards
    std::vector<device_arrays> arrays_;
    std::vector<std::size_t> first_result_; // of each piece, and the end
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    double timeout_s_ = 300;
    bool with_records_ = true;
    mutable bool is_late_ = false; // it was waited for in vain
};

} // namespace detail
ADAMANT_END_NAMESPACE
