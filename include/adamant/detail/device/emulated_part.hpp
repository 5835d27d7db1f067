// SPDX-License-Identifier: Apache-2.0
// emulated_part: an optimizer's pieces on an emulated device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/isa.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/shard/offload_shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// Runs the passes with the CPU's kernels.
class emulated_part final : public device_part {
public:
    emulated_part(emulated_device& owner, std::vector<device_piece> pieces, bool with_records)
        : device_(owner), pieces_(std::move(pieces))
    {
        std::size_t records = 0;
        for (device_piece const& piece : pieces_) {
            auto const array = [&](shard_array::index array_index) {
                device_ptr const pointer = piece.arrays[array_index];
                return pointer ? device_.real(pointer, array_bytes(piece.types[array_index], piece.elems)) : nullptr;
            };
            namespace arrays = shard_array;
            dtype const sum = piece.types[arrays::accumulator];
            kernel::sum_kernels_function const sum_kernels = kernel::sum_kernels_of(sum);
            changed_.emplace_back(piece.changed ? changed_words(piece.elems) : 0);
            published_.push_back(piece.changed ? device_.real(piece.changed, device_piece::changed_bytes(piece.elems))
                                               : nullptr);
            shards_.emplace_back(
                any_shard(*piece.format,
                          {array(arrays::param), array(arrays::grad), array(arrays::exp_avg), array(arrays::exp_avg_sq),
                           array(arrays::weight_out), piece.position, piece.changed ? changed_.back().data() : nullptr},
                          piece.elems),
                tier_, array(arrays::accumulator), sum, sum_kernels == nullptr ? nullptr : &sum_kernels(tier_));
            first_block_.push_back(slots_.size());
            for (std::size_t block_in_piece = 0; block_in_piece < piece.blocks(); ++block_in_piece) {
                slots_.push_back(records);
                if (with_records)
                    records +=
                        (shards_.back().record_bytes_at_most(shards_.back().length(block_in_piece)) + 63) / 64 * 64;
            }
        }
        squares_.resize(slots_.size());
        recorded_.resize(slots_.size());
        checksums_.resize(slots_.size());
        memory_ = device_.allocate(records);
        records_ = records == 0 ? nullptr : device_.real(memory_, records);
    }
    // Waits for enqueued operations, which refer to this object.
    ~emulated_part() override
    {
        device_.drain();
        device_.release(memory_);
    }

    void run(device_pass const& pass) override
    {
        struct task {
            block_pass pass;
            std::vector<std::uint32_t> pieces;
            std::vector<group_step> speculated, settled;
            std::vector<std::uint8_t> summed;
            bool keep_records;
        };
        auto const copy = [](auto span) { return std::vector(span.begin(), span.end()); };
        auto const work = std::make_shared<task const>(task{pass.pass, copy(pass.pieces), copy(pass.speculated),
                                                            copy(pass.settled), copy(pass.summed), pass.keep_records});
        std::size_t bytes = 0;
        for (std::uint32_t const piece : work->pieces) {
            detail::offload_shard const& s = shards_[piece];
            std::size_t const n = s.size();
            bytes += only_reads(pass.pass) ? s.bytes(s.grad, n) : step_bytes(s.format().types, n);
            bytes += work->summed[piece] != 0 ? s.bytes(s.accumulator, n) : 0;
        }
        device_.enqueue(
            device_stream::work, device_operation::work, bytes,
            detail::text_of({"pass '", name(pass.pass), "' over ", detail::counted(work->pieces.size(), "piece")}),
            [this, work, epoch = epoch_] {
                float_mode_scope const mode(subnormals::kept);
                for (std::uint32_t const piece : work->pieces)
                    for (std::size_t block_in_piece = 0; block_in_piece < shards_[piece].blocks(); ++block_in_piece)
                        run_block(work->pass, epoch, piece, block_in_piece, work->speculated[pieces_[piece].group],
                                  work->settled[pieces_[piece].group], work->summed[piece] != 0, work->keep_records);
            });
    }
    void accumulate(std::uint32_t piece, bool first) override
    {
        detail::offload_shard const& s = shards_[piece];
        device_.enqueue(device_stream::work, device_operation::work,
                        s.bytes(s.grad, s.size()) + (first ? 1 : 2) * s.bytes(s.accumulator, s.size()),
                        "accumulating gradients", [&s, first] { s.accumulate(0, s.size(), first); });
    }
    void round_weights() override
    {
        std::size_t bytes = 0;
        for (detail::offload_shard const& s : shards_)
            bytes += s.has_weight_out() ? s.bytes(s.param, s.size()) + s.bytes(s.weight_out, s.size()) : 0;
        device_.enqueue(device_stream::work, device_operation::work, bytes, "rounding weights", [this] {
            for (detail::offload_shard const& s : shards_)
                s.round_weights(0, s.size());
        });
    }
    void set_gradient(std::uint32_t piece, device_ptr grad) override
    {
        dtype const type = pieces_[piece].types[shard_array::grad];
        shards_[piece].set_gradient(device_.real(grad, array_bytes(type, pieces_[piece].elems)));
    }
    void forget_records() noexcept override { ++epoch_; }
    void fetch(std::span<grad_squares> squares, std::span<std::uint8_t> recorded) override
    {
        device_.wait_event(device_stream::down, device_.record_event(device_stream::work));
        device_.enqueue(device_stream::down, device_operation::copy_down, squares.size_bytes() + recorded.size_bytes(),
                        "fetching the results of a pass", [this, squares, recorded, epoch = epoch_] {
                            std::copy(squares_.begin(), squares_.end(), squares.begin());
                            std::transform(recorded_.begin(), recorded_.end(), recorded.begin(),
                                           [epoch](std::uint64_t record) { return std::uint8_t{record == epoch}; });
                        });
    }

private:
    void run_block(block_pass pass, std::uint64_t epoch, std::size_t piece, std::size_t block_in_piece,
                   group_step const& speculated, group_step const& settled, bool summed, bool keep_records)
    {
        detail::offload_shard const& s = shards_[piece];
        std::size_t const block = first_block_[piece] + block_in_piece;
        std::byte* const record = records_ + slots_[block];
        detail::scratch_block& scratch = scratch_;
        bool const recorded = recorded_[block] == epoch;
        if ((pass == block_pass::rest && recorded) || (pass == block_pass::rollback && !recorded))
            return;
        if ((pass == block_pass::rollback || pass == block_pass::redo) && recorded) {
            s.rollback(block_in_piece, s.gradient(block_in_piece, summed, speculated.rules, false, scratch),
                       speculated.c, false, record, scratch);
            recorded_[block] = 0;
            if (pass == block_pass::rollback) {
                s.round_weights(block_in_piece * norm_block_elems,
                                block_in_piece * norm_block_elems + s.length(block_in_piece));
                return;
            }
        }
        bool const reads_only = only_reads(pass);
        group_step const& applied = pass == block_pass::speculate ? speculated : settled;
        detail::offload_shard::ready_gradient const g =
            s.gradient(block_in_piece, summed, reads_only ? gradient_rules{} : applied.rules, is_first(pass), scratch);
        if (is_first(pass))
            squares_[block] = g.squares;
        if (pass == block_pass::compare && s.gradient_checksum(block_in_piece, summed) != checksums_[block])
            squares_[block].sum = -1; // matches no sum: the gradient has changed, perhaps only in signs or order
        if (reads_only)
            return;
        begin_changes(piece, block_in_piece);
        if (pass == block_pass::speculate || keep_records) {
            (void)s.step_recorded(block_in_piece, g, applied.c, false, record);
            recorded_[block] = epoch;
            checksums_[block] = s.gradient_checksum(block_in_piece, summed);
        } else {
            s.step(block_in_piece, g, applied.c, false);
        }
        publish_changes(piece, block_in_piece);
    }
    void begin_changes(std::size_t piece, std::size_t block_in_piece) noexcept
    {
        std::vector<std::uint64_t>& words = changed_[piece];
        for (std::size_t w = block_in_piece * block_words;
             w < std::min(words.size(), (block_in_piece + 1) * block_words); ++w)
            words[w] = 0;
    }
    // Writes a block's bits in the order of device_piece::changed.
    void publish_changes(std::size_t piece, std::size_t block_in_piece) noexcept
    {
        std::vector<std::uint64_t> const& words = changed_[piece];
        std::size_t const last = std::min(shards_[piece].size(), (block_in_piece + 1) * norm_block_elems);
        for (std::size_t i = block_in_piece * norm_block_elems; i < last && !words.empty(); i += 4)
            published_[piece][i / 4] = static_cast<std::byte>(words[i / 64] >> i % 64 & 15);
    }

    emulated_device& device_;
    std::vector<device_piece> pieces_;
    std::vector<detail::offload_shard> shards_;
    static constexpr std::size_t block_words = norm_block_elems / kernel::changed_word_elems;
    std::vector<std::vector<std::uint64_t>> changed_; // of each piece: bits of the last step
    std::vector<std::byte*> published_;               // the same as device_piece::changed
    std::vector<std::size_t> first_block_;
    std::vector<std::size_t> slots_; // offset of each block's record
    std::uint64_t epoch_ = 1;        // records of earlier epochs are invalid
    device_ptr memory_;
    std::byte* records_ = nullptr;
    isa tier_ = best_available_isa(); // same bits in any tier
    // Accessed only by operations on the work stream, and by copies that wait for it.
    std::vector<grad_squares> squares_;
    std::vector<std::uint64_t> recorded_;  // epoch of each block's record; 0: no record
    std::vector<std::uint64_t> checksums_; // of the gradient at the time of each block's record
    detail::scratch_block scratch_;
};

ADAMANT_DECL std::unique_ptr<device_part> emulated_device::make_part(std::vector<device_piece> pieces,
                                                                     bool with_records)
{
    return std::make_unique<emulated_part>(*this, std::move(pieces), with_records);
}
ADAMANT_DECL std::size_t emulated_device::part_bytes(std::span<device_piece const> pieces,
                                                     bool with_records) const noexcept
{
    std::size_t bytes = 0;
    if (!with_records)
        return bytes;
    for (device_piece const& piece : pieces) {
        std::uint64_t tracked = 0;
        kernel::step_pointers pointers{};
        pointers.changed = piece.changed ? &tracked : nullptr;
        detail::offload_shard const s(any_shard(*piece.format, pointers, piece.elems), best_available_isa());
        for (std::size_t block_in_piece = 0; block_in_piece < piece.blocks(); ++block_in_piece)
            bytes += (s.record_bytes_at_most(s.length(block_in_piece)) + 63) / 64 * 64;
    }
    return (bytes + alignment - 1) / alignment * alignment; // one allocation
}

ADAMANT_END_NAMESPACE
