// SPDX-License-Identifier: Apache-2.0
// part: an optimizer's pieces on a CUDA device, their memory layout, and the kernels that a pass launches.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <adamant/detail/cuda/cuda_memory.cuh>
#include <adamant/detail/cuda/gpu_kernels.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

[[nodiscard]] inline std::size_t stored_bytes(device_piece const& p, shard_array::index array_index) noexcept
{
    return array_bytes(p.types[array_index], p.elems);
}
[[nodiscard]] inline shard_dtypes types_of(device_piece const& p) noexcept
{
    return {p.types[0], p.types[1], p.types[2], p.types[3], p.types[4]};
}
// Layout of a part's single allocation. Members are offsets in bytes, except blocks.
struct part_layout {
    static constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }

    part_layout(std::span<device_piece const> pieces, bool with_records) noexcept
    {
        for (device_piece const& p : pieces)
            blocks += p.blocks();
        piece_of = aligned(pieces.size() * sizeof(piece));
        squares = piece_of + aligned(blocks * sizeof(std::uint32_t));
        recorded = squares + aligned(blocks * sizeof(grad_squares));
        records = recorded + aligned(blocks * sizeof(std::uint32_t));
        end = records;
        if (with_records)
            for (device_piece const& p : pieces)
                end += record_bytes(p);
    }
    [[nodiscard]] static std::size_t record_bytes(device_piece const& p) noexcept
    {
        std::size_t bytes = 0;
        for (auto const array_index : state_arrays)
            if (is_state(types_of(p), array_index))
                bytes += aligned(stored_bytes(p, array_index));
        return bytes;
    }

    std::size_t blocks = 0; // number of blocks
    std::size_t piece_of;
    std::size_t squares;
    std::size_t recorded;
    std::size_t records;
    std::size_t end;
};

using kernel = void (*)(launch);

[[nodiscard]] inline bool has_codes(device_piece const& p) noexcept
{
    return p.types[shard_array::exp_avg] == dtype::quantized8;
}

// One kernel for each common combination of types (float params and moments with any gradient and weight_out), one for
// 8-bit moments, which is the last, and one for all others.
inline constexpr std::size_t pass_kernels = 11;
[[nodiscard]] inline std::size_t pass_kernel_of(device_piece const& p) noexcept
{
    dtype const out = p.types[shard_array::weight_out];
    if (has_codes(p))
        return pass_kernels - 1;
    if (has_split_param(types_of(p)) || state_bytes(types_of(p)) != 3 * sizeof(float) || out == dtype::float32)
        return pass_kernels - 2;
    auto const sixteen = [](dtype type) -> std::size_t { return type == dtype::bfloat16 ? 1 : 2; };
    dtype const grad = p.types[shard_array::grad];
    return (grad == dtype::float32 ? 0 : sixteen(grad)) * 3 + (out == dtype::none ? 0 : sixteen(out));
}
[[nodiscard]] inline kernel pass_kernel_at(std::size_t number) noexcept
{
    constexpr int none = static_cast<int>(dtype::none);
    constexpr int f32 = static_cast<int>(dtype::float32);
    constexpr int bf16 = static_cast<int>(dtype::bfloat16);
    constexpr int f16 = static_cast<int>(dtype::float16);
    constexpr int any = any_dtype;
    constexpr int codes = static_cast<int>(dtype::quantized8);
    static constexpr kernel all[pass_kernels] = {
        pass_kernel<f32, f32, f32, f32, none>,    pass_kernel<f32, f32, f32, f32, bf16>,
        pass_kernel<f32, f32, f32, f32, f16>,     pass_kernel<f32, bf16, f32, f32, none>,
        pass_kernel<f32, bf16, f32, f32, bf16>,   pass_kernel<f32, bf16, f32, f32, f16>,
        pass_kernel<f32, f16, f32, f32, none>,    pass_kernel<f32, f16, f32, f32, bf16>,
        pass_kernel<f32, f16, f32, f32, f16>,     pass_kernel<any, any, any, any, any>,
        pass_kernel<any, any, codes, codes, any>,
    };
    return all[number];
}

[[nodiscard]] inline kernel rollback_kernel_at(std::size_t number) noexcept
{
    return number == 0 ? kernel(rollback_kernel<any_dtype>) : rollback_kernel<static_cast<int>(dtype::quantized8)>;
}

// Returns the kernels' rules of a group.
[[nodiscard]] inline group_rules rules_of(group_step const& step) noexcept
{
    gradient_rules const& r = step.rules;
    return {step.c, r.limited ? r.scale : 1.0f, r.limited ? r.bound : std::bit_cast<float>(float_infinity_bits),
            r.limited || r.zero_nonfinite, r.zero_nonfinite};
}

class part final : public device_part {
public:
    // Throws as device::allocate() does. `streams` must outlive the part.
    part(stream_set& streams, std::vector<device_piece> pieces, bool with_records)
        : streams_(streams), pieces_(std::move(pieces)), layout_(pieces_, with_records), recorded_(pieces_.size(), 0)
    {
        std::uint32_t block = 0;
        for (device_piece const& p : pieces_) {
            first_blocks_.push_back(block);
            block += static_cast<std::uint32_t>(p.blocks());
        }
        memory_ = allocate(streams_, layout_.end);
        try {
            std::size_t const results_bytes = layout_.blocks * (sizeof(grad_squares) + sizeof(std::uint32_t));
            fetched_ = std::make_shared<fetched_results>();
            fetched_->staged = pinned(streams_, std::max(layout_.records, results_bytes));
            // The tables; sums and epochs of records begin at 0. The copy is in the stream of the kernels. fetch()
            // uses the buffer after them.
            std::span<std::byte> const image(fetched_->staged.get(), layout_.records);
            std::fill(image.begin(), image.end(), std::byte{0});
            describe(image);
            streams_.check_failure(); // the copy would not be enqueued
            if (!image.empty())
                streams_.enqueue(device_stream::work, {operation::copy_up, {}, image.size()}, [&](cudaStream_t stream) {
                    return cudaMemcpyAsync(address_of(memory_), image.data(), image.size(), cudaMemcpyHostToDevice,
                                           stream);
                });
            streams_.check_failure();
        } catch (...) {
            release(streams_, memory_);
            throw;
        }
    }
    ~part() override
    {
        using enum stream_set::drain_result;
        if (!streams_.in_this_process()) // a lock may be locked forever
            return;
        std::chrono::seconds const limit(streams_.is_abandoned() ? 0 : 10);
        stream_set::drain_result const result = streams_.drain(stream_set::clock::now() + limit);
        if (result != idle) { // fetch()'s function may still be called
            std::lock_guard const lock(fetched_->mutex);
            fetched_->is_cancelled = true;
        }
        if (result == busy) { // the device may still write to the staging buffer
            fetched_->self = fetched_;
            streams_.abandon();
        }
        release(streams_, memory_);
    }

    void run(device_pass const& pass) override
    {
        streams_.check_process(); // before the lock, which a thread of another process may hold
        std::lock_guard const lock(mutex_);
        bool const rolls_back = pass.pass == block_pass::rollback;
        bool const is_step = !rolls_back && !only_reads(pass.pass);
        bool const makes_records = is_step && (pass.pass == block_pass::speculate || pass.keep_records);
        launch args;
        args.tasks = (is_first(pass.pass) ? sums : 0u) | (is_step ? steps : 0u) | (makes_records ? keeps_records : 0u) |
                     (pass.pass == block_pass::redo ? from_records | reads_state : 0u) |
                     (pass.pass == block_pass::rest ? unrecorded | reads_state : 0u);
        operation const op = {operation::pass, pass.pass, pass.pieces.size(), bytes_of(pass, makes_records)};
        auto const groups = pass.pass == block_pass::speculate ? pass.speculated : pass.settled;
        streams_.enqueue(device_stream::work, op, [&](cudaStream_t stream) {
            // A launch has one kernel and a range of groups.
            struct kind {
                std::size_t kernel;
                std::size_t first_group;
                bool operator==(kind const&) const = default;
            };
            auto const kind_of = [&](std::uint32_t piece) -> kind {
                return {rolls_back ? has_codes(pieces_[piece]) : pass_kernel_of(pieces_[piece]),
                        is_step ? pieces_[piece].group / launch::most_groups * launch::most_groups : 0};
            };
            // Each launch covers all pieces of a kind, so later pieces of this kind are skipped.
            std::vector<kind> launched; // few, because many pieces share a kind
            cudaError_t error = cudaSuccess;
            for (std::size_t first = 0; first < pass.pieces.size() && error == cudaSuccess; ++first) {
                kind const current = kind_of(pass.pieces[first]);
                // Adjacent pieces mostly share a kind, so the search begins with the last one.
                if (std::find(launched.rbegin(), launched.rend(), current) != launched.rend())
                    continue;
                launched.push_back(current);
                if (is_step) {
                    std::size_t const end = std::min(groups.size(), current.first_group + launch::most_groups);
                    for (std::size_t g = current.first_group; g < end; ++g)
                        args.group[g - current.first_group] = rules_of(groups[g]);
                }
                args.first_group = static_cast<std::uint32_t>(current.first_group);
                error = launch_over(
                    rolls_back ? rollback_kernel_at(current.kernel) : pass_kernel_at(current.kernel),
                    step_threads + ((args.tasks & sums) != 0 ? sum_threads : 0), stream, args,
                    pass.pieces.subspan(first), [&](std::uint32_t piece) { return kind_of(piece) == current; },
                    [&](std::uint32_t piece) { return !rolls_back && pass.summed[piece] != 0; });
            }
            return error;
        });
    }
    void accumulate(std::uint32_t piece, bool first) override
    {
        device_piece const& p = pieces_[piece];
        std::size_t const bytes =
            stored_bytes(p, shard_array::grad) + (first ? 1 : 2) * stored_bytes(p, shard_array::accumulator);
        streams_.enqueue(device_stream::work, {operation::accumulate, {}, piece, bytes}, [&](cudaStream_t stream) {
            launch args;
            args.tasks = 0;
            args.first_group = 0;
            std::uint32_t const one[] = {piece};
            return launch_over(
                accumulate_kernel<0>, step_threads, stream, args, one, [](std::uint32_t) { return true; },
                [&](std::uint32_t) { return !first; });
        });
    }
    void round_weights() override
    {
        std::size_t bytes = 0;
        std::vector<std::uint32_t> with_weights;
        for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
            device_piece const& p = pieces_[i];
            if (p.types[shard_array::weight_out] == dtype::none || has_split_param(types_of(p)))
                continue;
            with_weights.push_back(i);
            bytes += stored_bytes(p, shard_array::param) + stored_bytes(p, shard_array::weight_out);
        }
        streams_.enqueue(device_stream::work, {operation::round_weights, {}, with_weights.size(), bytes},
                         [&](cudaStream_t stream) {
                             launch args;
                             args.tasks = 0;
                             args.first_group = 0;
                             return launch_over(
                                 round_kernel<0>, step_threads, stream, args, with_weights,
                                 [](std::uint32_t) { return true; }, [](std::uint32_t) { return false; });
                         });
    }
    void set_gradient(std::uint32_t number, device_ptr grad) override
    {
        static_assert(shard_array::grad * sizeof(void*) < sizeof(piece::arrays));
        pieces_[number].arrays[shard_array::grad] = grad;
        std::size_t const offset = number * sizeof(piece) + offsetof(piece, arrays) + shard_array::grad * sizeof(void*);
        // Copied from the member: a device that shares memory may read it after the call returns.
        std::uint64_t const& address = pieces_[number].arrays[shard_array::grad].address;
        static_assert(sizeof address == sizeof(void*));
        streams_.enqueue(device_stream::work, {operation::describe, {}, number}, [&](cudaStream_t stream) {
            return cudaMemcpyAsync(address_of(memory_ + offset), &address, sizeof address, cudaMemcpyHostToDevice,
                                   stream);
        });
    }
    void forget_records() noexcept override { epoch_.fetch_add(1, std::memory_order_relaxed); }
    void fetch(std::span<grad_squares> squares, std::span<std::uint8_t> recorded) override
    {
        streams_.wait_event(device_stream::down, streams_.record_event(device_stream::work));
        if (layout_.blocks == 0)
            return;
        std::size_t const sums_bytes = layout_.blocks * sizeof(grad_squares);
        std::size_t const epochs_bytes = layout_.blocks * sizeof(std::uint32_t);
        std::byte* const staged = fetched_->staged.get();
        streams_.enqueue(device_stream::down, {operation::fetch, {}, layout_.blocks, sums_bytes + epochs_bytes},
                         [&](cudaStream_t stream) {
                             cudaError_t const error = cudaMemcpyAsync(staged, address_of(memory_ + layout_.squares),
                                                                       sums_bytes, cudaMemcpyDeviceToHost, stream);
                             return error != cudaSuccess
                                        ? error
                                        : cudaMemcpyAsync(staged + sums_bytes, address_of(memory_ + layout_.recorded),
                                                          epochs_bytes, cudaMemcpyDeviceToHost, stream);
                         });
        // The spans may be in pageable memory, and a copy to pageable memory would block until the stream reaches it.
        streams_.call(device_stream::down, [fetched = fetched_, staged, squares, recorded, sums_bytes,
                                            epoch = epoch_.load(std::memory_order_relaxed)] {
            std::lock_guard const lock(fetched->mutex);
            if (fetched->is_cancelled)
                return;
            std::memcpy(squares.data(), staged, sums_bytes);
            for (std::size_t b = 0; b < recorded.size(); ++b) {
                std::uint32_t record_epoch;
                std::memcpy(&record_epoch, staged + sums_bytes + b * sizeof record_epoch, sizeof record_epoch);
                recorded[b] = record_epoch == epoch ? 1 : 0;
            }
        });
    }

private:
    // What fetch() has enqueued uses this, also if it runs after the part is destroyed.
    struct fetched_results {
        std::mutex mutex;
        std::shared_ptr<std::byte> staged; // pinned
        bool is_cancelled = false;
        std::shared_ptr<fetched_results> self; // if set, this object is never destroyed
    };
    // Writes the kernels' tables: the pieces, and the piece of each block.
    void describe(std::span<std::byte> image) const
    {
        device_ptr record = memory_ + layout_.records;
        for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
            device_piece const& source = pieces_[i];
            piece target{};
            for (std::size_t a = 0; a < 6; ++a) {
                target.arrays[a] = address_of(source.arrays[a]);
                target.types[a] = source.types[a];
            }
            for (std::size_t a = 0; a < std::size(state_arrays) && layout_.end != layout_.records; ++a) {
                if (!is_state(types_of(source), state_arrays[a]))
                    continue;
                target.records[a] = address_of(record);
                record = record + part_layout::aligned(stored_bytes(source, state_arrays[a]));
            }
            target.changed = static_cast<std::uint8_t*>(address_of(source.changed));
            target.elems = source.elems;
            target.first_block = first_blocks_[i];
            target.group = static_cast<std::uint32_t>(source.group);
            target.position = source.position;
            std::memcpy(image.data() + i * sizeof target, &target, sizeof target);
            for (std::size_t b = 0; b < source.blocks(); ++b)
                std::memcpy(image.data() + layout_.piece_of + (first_blocks_[i] + b) * sizeof i, &i, sizeof i);
        }
    }
    // Launches a kernel over the pieces of a list for which takes_part() is true, in as few launches as their runs of
    // blocks need.
    template <class TakesPart, class IsSummed>
    [[nodiscard]] cudaError_t launch_over(kernel function, unsigned threads, cudaStream_t stream, launch& args,
                                          std::span<std::uint32_t const> list, TakesPart const& takes_part,
                                          IsSummed const& is_summed) const
    {
        args.part = {static_cast<piece const*>(address_of(memory_)),
                     static_cast<std::uint32_t const*>(address_of(memory_ + layout_.piece_of)),
                     static_cast<grad_squares*>(address_of(memory_ + layout_.squares)),
                     static_cast<std::uint32_t*>(address_of(memory_ + layout_.recorded))};
        args.epoch = epoch_.load(std::memory_order_relaxed);
        args.runs = 0;
        std::uint32_t blocks = 0;
        std::uint32_t next = 0; // the part's block that would continue the last run
        cudaError_t error = cudaSuccess;
        auto const finish = [&] {
            if (args.runs != 0 && error == cudaSuccess)
                error = ADAMANT_GPU_LAUNCH(function, blocks, threads, stream, args);
            args.runs = 0;
            blocks = 0;
        };
        for (std::uint32_t const i : list) {
            auto const n = static_cast<std::uint32_t>(pieces_[i].blocks());
            if (n == 0 || !takes_part(i))
                continue;
            std::uint32_t const begin = first_blocks_[i] | (is_summed(i) ? summed_bit : 0u);
            if (args.runs == 0 || begin != next) {
                if (args.runs == launch::most_runs)
                    finish();
                args.run[args.runs++] = {blocks, begin};
            }
            blocks += n;
            next = begin + n;
        }
        finish();
        return error;
    }
    // Returns the bytes that a pass reads and writes. Updates recorded_.
    [[nodiscard]] std::size_t bytes_of(device_pass const& pass, bool makes_records)
    {
        std::size_t bytes = 0;
        for (std::uint32_t const i : pass.pieces) {
            device_piece const& p = pieces_[i];
            bool const had_record = recorded_[i] == epoch_.load(std::memory_order_relaxed);
            bool const rolls_back = pass.pass == block_pass::rollback;
            if (pass.pass == block_pass::rest ? had_record : rolls_back && !had_record)
                continue;
            std::size_t const grad = stored_bytes(p, shard_array::grad);
            if (!rolls_back)
                bytes += grad + (pass.summed[i] != 0 ? stored_bytes(p, shard_array::accumulator) : 0);
            if (!only_reads(pass.pass))
                bytes += step_bytes(types_of(p), p.elems) - grad;
            if (makes_records && !(pass.pass == block_pass::redo && had_record))
                bytes += state_bytes(types_of(p), p.elems);
            if (rolls_back || pass.pass == block_pass::redo || makes_records)
                recorded_[i] = makes_records ? epoch_.load(std::memory_order_relaxed) : 0;
        }
        return bytes;
    }

    stream_set& streams_;
    std::vector<device_piece> pieces_;
    part_layout layout_;
    std::vector<std::uint32_t> first_blocks_; // of each piece
    device_ptr memory_;
    std::shared_ptr<fetched_results> fetched_;
    std::mutex mutex_;
    std::vector<std::uint32_t> recorded_; // epoch of each piece's records; only for bytes_of()
    std::atomic<std::uint32_t> epoch_{1}; // of new records; older records are invalid
};

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
