// SPDX-License-Identifier: Apache-2.0
// The pieces of an optimizer's shards on a device: their memory there, and their copies to and from the host. On a
// device that shares the host's memory, the arrays of a piece are the shard's, with no other memory and no copies,
// except for arrays that are not aligned as kernels need them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/device/device_session.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/registry.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class device_pieces {
public:
    // Consecutive elements of a shard. Begins at a multiple of norm_block_elems.
    struct piece {
        std::size_t shard;
        std::size_t begin; // in the shard
        device_piece device;
        device_ptr memory = {}; // holds the arrays that the caller does not own
        bool is_shared[6] = {}; // for each array: whether it is the shard's
        // If changed weights are tracked: pinned memory for a copy of device_piece::changed and, from first_old_word()
        // on, the shard's words before the step.
        std::shared_ptr<std::byte> changes = {};
    };

    device_pieces(registry const& shard_registry, optimizer_options const& options)
        : registry_(shard_registry), options_(options)
    {
    }
    device_pieces(device_pieces const&) = delete;
    device_pieces& operator=(device_pieces const&) = delete;
    ~device_pieces()
    {
        part_.reset();
        for (piece const& p : pieces_)
            device().release(p.memory);
    }

    [[nodiscard]] bool has_device() const noexcept { return session_ != nullptr; }
    [[nodiscard]] device_session const& session() const noexcept { return *session_; } // has_device() only
    [[nodiscard]] adamant::device& device() const noexcept { return **session_; }      // has_device() only
    // Sorted by shard and first element.
    [[nodiscard]] std::vector<piece> const& all() const noexcept { return pieces_; }
    // Index of the first piece of a shard, or of a later one if it has none.
    [[nodiscard]] std::size_t first_of(std::size_t shard) const noexcept { return first_from(shard, 0); }
    // Indices [first, second) of a shard's pieces.
    [[nodiscard]] std::pair<std::size_t, std::size_t> of_shard(std::size_t shard) const noexcept
    {
        return {first_of(shard), first_of(shard + 1)};
    }
    // Null without pieces.
    [[nodiscard]] device_part* part() const noexcept { return part_.get(); }
    // Results of a pass for each block of each piece, in order.
    [[nodiscard]] std::vector<grad_squares> const& squares() const noexcept { return squares_; }
    [[nodiscard]] std::vector<std::uint8_t> const& recorded() const noexcept { return recorded_; }
    // Enqueues their download, if any.
    void fetch_results()
    {
        if (part_ != nullptr)
            part_->fetch({squares_.data(), squares_.size()}, {recorded_.data(), recorded_.size()});
    }

    // See device_backend.
    void place(std::shared_ptr<adamant::device> target, std::vector<shard_piece> const& requested)
    {
        if (!pieces_.empty()) { // the new pieces are copied from the host
            try {
                copy_state_to_host(true);
            } catch (...) {
                (void)session_->stop();
                throw;
            }
        }
        bool const is_same = target != nullptr && has_device() && target.get() == &device();
        replacement next;
        next.kept.resize(pieces_.size());
        next.session = is_same ? session_ : nullptr;
        if (target != nullptr && !is_same)
            next.session = std::make_shared<device_session>(target, options_.device_timeout_s);
        part_.reset(); // its records are obsolete, and the next part may need their memory
        try {
            add_pieces(next, is_same, requested);
            part_ = make_part(target.get(), next.pieces);
            if (target != nullptr)
                upload(next);
        } catch (...) {
            if (target != nullptr)
                (void)next.session->stop();
            part_.reset();
            for (std::size_t const i : next.fresh)
                target->release(next.pieces[i].memory);
            restore_pieces();
            throw;
        }
        for (std::size_t i = 0; i < pieces_.size(); ++i)
            if (next.kept[i] == 0)
                device().release(pieces_[i].memory);
        session_ = std::move(next.session);
        pieces_ = std::move(next.pieces);
        squares_ = std::move(next.squares);
        recorded_ = std::move(next.recorded);
    }
    // Bytes that place() allocates on the device for these pieces.
    [[nodiscard]] static std::size_t bytes_for(registry const& shard_registry, adamant::device const& target,
                                               std::vector<shard_piece> const& requested, bool with_records)
    {
        std::size_t bytes = 0;
        std::vector<device_piece> descriptions;
        for (shard_piece const& w : requested)
            if (w.backend == backend_kind::device) {
                piece const p = make_piece(shard_registry, target, w);
                bytes += owned_bytes(shard_registry, p);
                descriptions.push_back(p.device);
            }
        return bytes + target.part_bytes({descriptions.data(), descriptions.size()}, with_records);
    }

    // See device_backend.
    [[nodiscard]] std::vector<block_range> cpu_ranges() const
    {
        std::vector<block_range> ranges;
        auto next_piece = pieces_.begin();
        auto const add = [&](std::size_t shard, std::size_t begin, std::size_t end) {
            std::size_t const max_blocks =
                registry_.has_device_arrays(shard) ? chunk_blocks : std::max<std::size_t>(end - begin, 1);
            for (; begin < end; begin += std::min(max_blocks, end - begin))
                ranges.push_back({shard, begin, begin + std::min(max_blocks, end - begin)});
        };
        for (std::size_t i = 0; i < registry_.size(); ++i) {
            std::size_t block = 0;
            for (; next_piece != pieces_.end() && next_piece->shard == i; ++next_piece) {
                add(i, block, next_piece->begin / norm_block_elems);
                block = next_piece->begin / norm_block_elems + next_piece->device.blocks();
            }
            add(i, block, registry_[i].shard.blocks());
        }
        return ranges;
    }

    // Waits for all enqueued work. Throws device_error if it fails or exceeds the timeout.
    void wait() const { session_->wait(); }
    // Copies params and moments, and with_sums the accumulators, to the shards' arrays. Waits. Throws device_error.
    void copy_state_to_host(bool with_sums) const
    {
        for (piece const& p : pieces_)
            for_each_state_array(p, with_sums, [&](shard_array::index which, std::size_t bytes) {
                device().copy_down(host_data(p, which), p.device.arrays[which], bytes);
            });
        wait();
    }
    // Enqueues the copy in the other direction, with the accumulators.
    void copy_state_up(adamant::device& target, piece const& p) const
    {
        for_each_state_array(p, true, [&](shard_array::index which, std::size_t bytes) {
            target.copy_up(p.device.arrays[which], host_data(p, which), bytes);
        });
    }
    // The first byte of a piece's array in the shard's memory.
    [[nodiscard]] std::byte* host_data(piece const& p, shard_array::index which) const noexcept
    {
        offload_shard const& s = registry_[p.shard].shard;
        return s.data(which) + s.bytes(which, p.begin);
    }
    // Whether passes use an array that is not in the piece's memory: the caller's on the device, or the shard's.
    [[nodiscard]] bool is_given(piece const& p, std::size_t array) const noexcept
    {
        return p.is_shared[array] || is_given(registry_, p, array);
    }
    // Whether host memory and device memory are the same.
    [[nodiscard]] bool is_shared(std::byte const* host, device_ptr on_device) const noexcept
    {
        return device().shares_host_memory() && reinterpret_cast<std::uintptr_t>(host) == on_device.address;
    }
    // Whether passes read gradients of the shard from the host's memory.
    [[nodiscard]] bool shares_gradient(std::size_t shard) const noexcept
    {
        auto const [begin, end] = of_shard(shard);
        return begin != end && pieces_[begin].is_shared[shard_array::grad];
    }
    // Makes passes read the shard's gradient if set_gradient() has changed it. For copied gradients there is nothing to
    // do.
    void refresh_gradient(std::size_t i)
    {
        piece& p = pieces_[i];
        if (!p.is_shared[shard_array::grad])
            return;
        device_ptr const grad = shared(p, shard_array::grad);
        if (grad != p.device.arrays[shard_array::grad])
            part_->set_gradient(static_cast<std::uint32_t>(i), grad);
        p.device.arrays[shard_array::grad] = grad;
    }

    // As device_backend::commit_changes(), for one piece.
    void commit_changes(piece const& p) const noexcept
    {
        if (!p.device.changed)
            return;
        std::uint64_t* const words = words_of(p);
        for (std::size_t w = 0; w < changed_words(p.device.elems); ++w) {
            std::memcpy(p.changes.get() + first_old_word(p.device.elems) + w * sizeof *words, words + w, sizeof *words);
            words[w] |= word_of_step(p, w);
        }
    }
    void restore_changes(piece const& p) const noexcept
    {
        if (!p.device.changed)
            return;
        std::uint64_t* const words = words_of(p);
        for (std::size_t w = 0; w < changed_words(p.device.elems); ++w) {
            std::uint64_t before;
            std::memcpy(&before, p.changes.get() + first_old_word(p.device.elems) + w * sizeof before, sizeof before);
            offload_shard::restore_changes(words[w], before, word_of_step(p, w));
        }
    }

private:
    // The pieces of a new placement.
    struct replacement {
        std::shared_ptr<device_session> session; // null without a device
        std::vector<piece> pieces;
        std::vector<std::size_t> fresh; // indices of pieces with new memory
        std::vector<std::uint8_t> kept; // for each present piece, 1: it keeps its memory
        std::vector<grad_squares> squares;
        std::vector<std::uint8_t> recorded;
    };
    // Fills `next` from the requested pieces and allocates their memory. is_same: next is on the present device.
    void add_pieces(replacement& next, bool is_same, std::vector<shard_piece> const& requested) const
    {
        for (shard_piece const& w : requested) {
            if (w.backend != backend_kind::device)
                continue;
            std::size_t const same = is_same ? find(w) : pieces_.size();
            if (same != pieces_.size()) {
                next.pieces.push_back(pieces_[same]);
                set_arrays(next.pieces.back());
                next.kept[same] = 1;
                continue;
            }
            adamant::device& target = **next.session;
            next.pieces.push_back(make_piece(registry_, target, w));
            next.fresh.push_back(next.pieces.size() - 1);
            piece& added = next.pieces.back();
            added.memory = target.allocate(owned_bytes(registry_, added));
            set_arrays(added);
            if (added.device.changed)
                added.changes = target.pinned(first_old_word(w.elems) + changed_words(w.elems) * sizeof(std::uint64_t));
        }
        std::size_t blocks = 0;
        for (piece const& p : next.pieces)
            blocks += p.device.blocks();
        next.squares.resize(blocks);
        next.recorded.resize(blocks);
    }
    // Copies the state of new pieces to the device, and waits.
    void upload(replacement const& next) const
    {
        adamant::device& target = **next.session;
        for (std::size_t const i : next.fresh)
            copy_state_up(target, next.pieces[i]);
        // A step downloads the weights of whole pieces, including blocks that it does not step.
        if (part_ != nullptr) {
            target.wait_event(device_stream::work, target.record_event(device_stream::up));
            part_->round_weights();
        }
        next.session->wait();
    }

    // Gradients are downloaded, and weights uploaded, in chunks of this many blocks: 2 MiB of 16-bit numbers.
    static constexpr std::size_t chunk_blocks = 256;

    [[nodiscard]] static std::size_t first_old_word(std::size_t elems) noexcept
    {
        return device_aligned(device_piece::changed_bytes(elems));
    }
    [[nodiscard]] std::uint64_t* words_of(piece const& p) const noexcept
    {
        return registry_[p.shard].shard.changed() + p.begin / kernel::changed_word_elems;
    }
    // Word w of the bits of the last step.
    [[nodiscard]] static std::uint64_t word_of_step(piece const& p, std::size_t w) noexcept
    {
        constexpr std::size_t word_bytes = device_piece::changed_bytes(kernel::changed_word_elems);
        std::uint64_t word = 0;
        std::size_t const last = std::min(device_piece::changed_bytes(p.device.elems), (w + 1) * word_bytes);
        for (std::size_t i = w * word_bytes; i < last; ++i)
            word |= std::to_integer<std::uint64_t>(p.changes.get()[i]) << i % word_bytes * 4;
        return word;
    }
    // Index of the first piece that begins at or after this element of the shard.
    [[nodiscard]] std::size_t first_from(std::size_t shard, std::size_t begin) const noexcept
    {
        auto const piece_at =
            std::lower_bound(pieces_.begin(), pieces_.end(), begin, [&](piece const& p, std::size_t element) {
                return p.shard != shard ? p.shard < shard : p.begin < element;
            });
        return static_cast<std::size_t>(piece_at - pieces_.begin());
    }
    // Index of the piece with the same elements; pieces_.size() if there is none.
    [[nodiscard]] std::size_t find(shard_piece const& w) const
    {
        std::size_t const i = first_from(w.shard, w.begin);
        bool const same = i != pieces_.size() && pieces_[i].shard == w.shard && pieces_[i].begin == w.begin &&
                          pieces_[i].device.elems == w.elems;
        return same ? i : pieces_.size();
    }
    [[nodiscard]] std::unique_ptr<device_part> make_part(adamant::device* target,
                                                         std::vector<piece> const& pieces) const
    {
        std::vector<device_piece> descriptions;
        for (piece const& p : pieces)
            descriptions.push_back(p.device);
        return pieces.empty() ? nullptr : target->make_part(std::move(descriptions), options_.device_records);
    }
    // Call in an exception handler of place(): restores the previous pieces.
    void restore_pieces()
    {
        std::exception_ptr const first = std::current_exception();
        try {
            part_ = make_part(has_device() ? &device() : nullptr, pieces_);
            return;
        } catch (...) {
            for (piece const& p : pieces_)
                device().release(p.memory);
            pieces_.clear();
            session_.reset();
        }
        try {
            std::rethrow_exception(first);
        } catch (std::exception const& failure) {
            throw unavailable(text_of({failure.what(), "; restoring the previous placement failed, too, so the CPU has "
                                                       "all shards now. No data is lost."}));
        }
    }
    [[nodiscard]] static piece make_piece(registry const& shard_registry, adamant::device const& target,
                                          shard_piece const& w)
    {
        tracked_shard const& s = shard_registry[w.shard];
        piece p{w.shard, w.begin, {}};
        for (std::size_t i = 0; i < 6; ++i) {
            auto const which = static_cast<shard_array::index>(i);
            p.device.types[i] = s.shard.type(which);
            p.is_shared[i] = target.shares_host_memory() && !is_given(shard_registry, p, i) &&
                             reinterpret_cast<std::uintptr_t>(s.shard.data(which)) % device_piece::alignment == 0;
        }
        p.device.elems = w.elems;
        p.device.group = s.group;
        p.device.position = s.shard.position(w.begin);
        p.device.format = &s.shard.format();
        if (s.shard.changed() != nullptr)
            p.device.changed = device_ptr{1}; // set_arrays() sets the address
        return p;
    }
    [[nodiscard]] static bool is_given(registry const& shard_registry, piece const& p, std::size_t array) noexcept
    {
        return shard_registry.has_device_arrays(p.shard) &&
               (array == shard_array::grad || array == shard_array::weight_out);
    }
    // Bytes of the arrays that the caller does not own.
    [[nodiscard]] static std::size_t owned_bytes(registry const& shard_registry, piece const& p) noexcept
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < 6; ++i)
            if (!is_given(shard_registry, p, i) && !p.is_shared[i])
                bytes += device_aligned(array_bytes(p.device.types[i], p.device.elems));
        if (p.device.changed)
            bytes += device_aligned(device_piece::changed_bytes(p.device.elems));
        return bytes;
    }
    // The address of a shard's array on a device that shares the host's memory.
    [[nodiscard]] device_ptr shared(piece const& p, shard_array::index which) const noexcept
    {
        std::byte const* const data = registry_[p.shard].shard.data(which);
        return data == nullptr ? device_ptr{} : device_ptr{reinterpret_cast<std::uintptr_t>(host_data(p, which))};
    }
    // Sets the addresses of a piece's arrays.
    void set_arrays(piece& p) const
    {
        device_ptr next = p.memory;
        for (std::size_t i = 0; i < 6; ++i) {
            dtype const type = p.device.types[i];
            if (is_given(registry_, p, i)) {
                device_arrays const& given = registry_.arrays_on_device(p.shard);
                device_ptr const base = i == shard_array::grad ? given.grad : given.weight_out;
                p.device.arrays[i] = type == dtype::none ? device_ptr{} : base + array_bytes(type, p.begin);
            } else if (p.is_shared[i]) {
                p.device.arrays[i] = shared(p, static_cast<shard_array::index>(i));
            } else if (type != dtype::none) {
                p.device.arrays[i] = next;
                next = next + device_aligned(array_bytes(type, p.device.elems));
            }
        }
        if (p.device.changed)
            p.device.changed = next;
    }
    template <class Work>
    void for_each_state_array(piece const& p, bool with_sums, Work const& work) const
    {
        namespace arrays = shard_array;
        tracked_shard const& s = registry_[p.shard];
        for (auto const which : state_arrays)
            if (s.shard.is_state(which) && !p.is_shared[which])
                work(which, s.shard.bytes(which, p.device.elems));
        if (with_sums && s.summed != 0 && s.shard.has_accumulator() && !p.is_shared[arrays::accumulator])
            work(arrays::accumulator, s.shard.bytes(arrays::accumulator, p.device.elems));
    }

    registry const& registry_;
    optimizer_options const& options_;
    std::shared_ptr<device_session> session_; // null without a device
    std::unique_ptr<device_part> part_;
    std::vector<piece> pieces_;
    std::vector<grad_squares> squares_;
    std::vector<std::uint8_t> recorded_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
