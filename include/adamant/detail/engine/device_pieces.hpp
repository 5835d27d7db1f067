// SPDX-License-Identifier: Apache-2.0
// Which pieces of an optimizer's shards lie on a device: their memory there, and how they come and go.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/registry.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// How an optimizer deals with a device.
struct device_settings {
    double timeout_s = 300; // see optimizer_options
    bool with_records = true;
};

class device_pieces {
public:
    // Consecutive elements of a shard, from a multiple of norm_block_elems on.
    struct piece {
        std::size_t shard;
        std::size_t begin; // in the shard
        device_piece on;
        device_ptr memory = {}; // of the arrays that are not the caller's
    };

    device_pieces(registry const& over, device_settings settings) : over_(over), settings_(settings) {}
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

    [[nodiscard]] bool has_device() const noexcept { return device_ != nullptr; }
    [[nodiscard]] adamant::device& device() const noexcept { return *device_; }
    [[nodiscard]] bool with_records() const noexcept { return settings_.with_records; }
    // In the order of shards and elements.
    [[nodiscard]] std::vector<piece> const& all() const noexcept { return pieces_; }
    // The numbers of a shard's pieces, from the first to the second.
    [[nodiscard]] std::pair<std::size_t, std::size_t> of_shard(std::size_t shard) const noexcept
    {
        return {first_from(shard, 0), first_from(shard + 1, 0)};
    }
    // Null where there are no pieces.
    [[nodiscard]] device_part* part() const noexcept { return part_.get(); }
    // What a pass finds about each block of each piece; piece i's are from first_result(i) on.
    [[nodiscard]] std::vector<grad_squares> const& squares() const noexcept { return squares_; }
    [[nodiscard]] std::vector<std::uint8_t> const& recorded() const noexcept { return recorded_; }
    // Enqueues their way down, where there are pieces.
    void fetch_results()
    {
        if (part_ != nullptr)
            part_->fetch({squares_.data(), squares_.size()}, {recorded_.data(), recorded_.size()});
    }
    [[nodiscard]] std::size_t first_result(std::size_t i) const noexcept { return first_result_[i]; }

    // See device_backend.
    void place(std::shared_ptr<adamant::device> to, std::vector<shard_piece> const& where)
    {
        if (!pieces_.empty()) { // new pieces are filled from there
            try {
                copy_state_to_host(true);
            } catch (...) {
                (void)device_->reset(deadline());
                throw;
            }
        }
        std::vector<piece> next;
        std::vector<std::size_t> fresh;      // numbers in next
        std::vector<std::size_t> results{0}; // of each piece of next
        std::vector<grad_squares> squares;
        std::vector<std::uint8_t> recorded;
        std::vector<std::uint8_t> kept(pieces_.size()); // 1: the piece stays where it is
        if (to != nullptr)
            to->claim(this); // after what allocates: whatever fails from here on lets go of it
        part_.reset();       // its records are not needed any more, and the next one may need their memory
        try {
            for (shard_piece const& w : where) {
                if (w.on != backend_kind::device)
                    continue;
                std::size_t const same = to == device_ ? find(w) : pieces_.size();
                if (same != pieces_.size()) {
                    next.push_back(pieces_[same]);
                    kept[same] = 1;
                    continue;
                }
                next.push_back(make_piece(over_, w));
                fresh.push_back(next.size() - 1);
                next.back().memory = to->allocate(own_bytes(over_, next.back()));
                give_memory(next.back());
            }
            for (piece const& p : next)
                results.push_back(results.back() + p.on.blocks());
            squares.resize(results.back());
            recorded.resize(results.back());
            part_ = make_part(to.get(), next);
            for (std::size_t const i : fresh)
                copy_state_up(*to, next[i], true);
            if (part_ !=
                nullptr) { // a step sends the weights of whole pieces down, also of blocks that it leaves alone
                to->wait_event(device_stream::work, to->record_event(device_stream::up));
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
        for (std::size_t i = 0; i < pieces_.size(); ++i)
            if (kept[i] == 0)
                device_->release(pieces_[i].memory);
        if (device_ != nullptr && to != device_)
            device_->leave(this);
        pieces_ = std::move(next);
        device_ = std::move(to);
        first_result_ = std::move(results);
        squares_ = std::move(squares);
        recorded_ = std::move(recorded);
    }
    // What place() allocates on the device for these.
    [[nodiscard]] static std::size_t bytes_for(registry const& over, adamant::device const& on,
                                               std::vector<shard_piece> const& where, bool with_records)
    {
        std::size_t bytes = 0;
        std::vector<device_piece> made;
        for (shard_piece const& w : where)
            if (w.on == backend_kind::device) {
                piece const p = make_piece(over, w);
                bytes += own_bytes(over, p);
                made.push_back(p.on);
            }
        return bytes + on.part_bytes({made.data(), made.size()}, with_records);
    }

    // See device_backend.
    [[nodiscard]] std::vector<block_range> cpu_ranges() const
    {
        std::vector<block_range> ranges;
        auto piece_at = pieces_.begin();
        auto const add = [&](std::size_t shard, std::size_t begin, std::size_t end) {
            std::size_t const most =
                over_.has_device_arrays(shard) ? chunk_blocks : std::max<std::size_t>(end - begin, 1);
            for (; begin < end; begin += std::min(most, end - begin))
                ranges.push_back({shard, begin, begin + std::min(most, end - begin)});
        };
        for (std::size_t i = 0; i < over_.size(); ++i) {
            std::size_t at = 0;
            for (; piece_at != pieces_.end() && piece_at->shard == i; ++piece_at) {
                add(i, at, piece_at->begin / norm_block_elems);
                at = piece_at->begin / norm_block_elems + piece_at->on.blocks();
            }
            add(i, at, over_[i].shard.blocks());
        }
        return ranges;
    }

    // Until all that was enqueued is done. Throws device_error where it fails, or is not done by the timeout.
    void wait() const { wait_all(*device_); }
    // Params and moments, and with_sums what was accumulated, into the shards' own arrays. Throws device_error.
    void copy_state_to_host(bool with_sums) const
    {
        for (piece const& p : pieces_)
            for_each_state_array(p, with_sums, [&](shard_array::index which, std::size_t bytes) {
                device_->copy_down(home(p, which), p.on.arrays[which], bytes);
            });
        wait();
    }
    // The other way; enqueues it.
    void copy_state_up(adamant::device& on, piece const& p, bool with_sums) const
    {
        for_each_state_array(p, with_sums, [&](shard_array::index which, std::size_t bytes) {
            on.copy_up(p.on.arrays[which], home(p, which), bytes);
        });
    }
    // Where a piece's array begins in the shard's own memory.
    [[nodiscard]] std::byte* home(piece const& p, shard_array::index which) const noexcept
    {
        offload_shard const& s = over_[p.shard].shard;
        return s.data(which) + s.bytes(which, p.begin);
    }
    // Whether the array on the device is the caller's.
    [[nodiscard]] bool is_given(piece const& p, std::size_t array) const noexcept { return is_given(over_, p, array); }

    // When a device that is given work now has to be through with it.
    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(settings_.timeout_s));
    }
    [[noreturn]] void throw_late(device_stream stream) const { throw_late(*device_, stream); }
    // Drops what has not begun, and waits for the rest. False where the device does not answer, or cannot go on. One
    // that was waited for in vain is not waited for as long again.
    [[nodiscard]] bool stop() const noexcept
    {
        if (device_ == nullptr)
            return true;
        auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        bool const answers = device_->reset(is_late_ ? std::min(soon, deadline()) : deadline());
        is_late_ = !answers;
        return answers;
    }

private:
    // Gradients come down, and weights go up, this many blocks at a time: 2 MiB of 16-bit numbers.
    static constexpr std::size_t chunk_blocks = 256;

    void wait_all(adamant::device& on) const
    {
        auto const until = deadline();
        for (device_stream const stream : {device_stream::up, device_stream::work, device_stream::down})
            if (!on.wait_until(on.record_event(stream), until))
                throw_late(on, stream);
    }
    [[noreturn]] void throw_late(adamant::device const& on, device_stream stream) const
    {
        is_late_ = true;
        throw_device_error({on.name(), " has not come to the end of its stream '", name(stream), "' in ",
                            settings_.timeout_s,
                            " s; it seems to have stopped answering (see device_timeout_s in the options)"});
    }

    // The number of the first piece at or behind an element of a shard.
    [[nodiscard]] std::size_t first_from(std::size_t shard, std::size_t begin) const noexcept
    {
        auto const at =
            std::lower_bound(pieces_.begin(), pieces_.end(), begin, [&](piece const& p, std::size_t element) {
                return p.shard != shard ? p.shard < shard : p.begin < element;
            });
        return static_cast<std::size_t>(at - pieces_.begin());
    }
    // The number of that piece; pieces_.size() where there is none.
    [[nodiscard]] std::size_t find(shard_piece const& w) const
    {
        std::size_t const at = first_from(w.shard, w.begin);
        bool const same = at != pieces_.size() && pieces_[at].shard == w.shard && pieces_[at].begin == w.begin &&
                          pieces_[at].on.elems == w.elems;
        return same ? at : pieces_.size();
    }
    [[nodiscard]] std::unique_ptr<device_part> make_part(adamant::device* on, std::vector<piece> const& pieces) const
    {
        std::vector<device_piece> made;
        for (piece const& p : pieces)
            made.push_back(p.on);
        return pieces.empty() ? nullptr : on->make_part(std::move(made), settings_.with_records);
    }
    // In an exception handler: restores the previous pieces after place() has failed.
    void stay()
    {
        std::exception_ptr const first = std::current_exception();
        try {
            part_ = make_part(device_.get(), pieces_);
            return;
        } catch (...) {
            for (piece const& p : pieces_)
                device_->release(p.memory);
            pieces_.clear();
            device_->leave(this);
            device_.reset();
        }
        try {
            std::rethrow_exception(first);
        } catch (std::exception const& failure) {
            throw unavailable(text_of({failure.what(), "; going on as before failed, too, so the CPU has all shards "
                                                       "now, with nothing lost"}));
        }
    }
    [[nodiscard]] static piece make_piece(registry const& over, shard_piece const& w)
    {
        tracked_shard const& s = over[w.shard];
        piece p{w.shard, w.begin, {}};
        for (std::size_t i = 0; i < 6; ++i)
            p.on.types[i] = s.shard.type(static_cast<shard_array::index>(i));
        p.on.elems = w.elems;
        p.on.group = s.group;
        p.on.place = s.shard.place(w.begin);
        p.on.format = &s.shard.format();
        return p;
    }
    [[nodiscard]] static bool is_given(registry const& over, piece const& p, std::size_t array) noexcept
    {
        return over.has_device_arrays(p.shard) && (array == shard_array::grad || array == shard_array::weight_out);
    }
    static constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 255) / 256 * 256; }
    [[nodiscard]] static std::size_t own_bytes(registry const& over, piece const& p) noexcept
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < 6; ++i)
            if (!is_given(over, p, i))
                bytes += aligned(array_bytes(p.on.types[i], p.on.elems));
        return bytes;
    }
    void give_memory(piece& p) const
    {
        device_ptr at = p.memory;
        for (std::size_t i = 0; i < 6; ++i) {
            dtype const type = p.on.types[i];
            if (is_given(p, i)) {
                device_arrays const& given = over_.arrays_on_device(p.shard);
                device_ptr const base = i == shard_array::grad ? given.grad : given.weight_out;
                p.on.arrays[i] = type == dtype::none ? device_ptr{} : base + array_bytes(type, p.begin);
            } else if (type != dtype::none) {
                p.on.arrays[i] = at;
                at = at + aligned(array_bytes(type, p.on.elems));
            }
        }
    }
    template <class Work>
    void for_each_state_array(piece const& p, bool with_sums, Work const& work) const
    {
        namespace arrays = shard_array;
        tracked_shard const& s = over_[p.shard];
        for (auto const which : state_arrays)
            if (s.shard.is_state(which))
                work(which, s.shard.bytes(which, p.on.elems));
        if (with_sums && s.summed != 0 && s.shard.has_accumulator())
            work(arrays::accumulator, s.shard.bytes(arrays::accumulator, p.on.elems));
    }

    registry const& over_;
    device_settings settings_;
    std::shared_ptr<adamant::device> device_;
    std::unique_ptr<device_part> part_;
    std::vector<piece> pieces_;
    std::vector<std::size_t> first_result_; // of each piece, and the end
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
    mutable bool is_late_ = false; // it was waited for in vain
};

} // namespace detail
ADAMANT_END_NAMESPACE
