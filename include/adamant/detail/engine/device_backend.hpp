// SPDX-License-Identifier: Apache-2.0
// The device's side of a step, as the step's session sees it. Programs without a device compile nothing below this.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/shard/block_pass.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What lies on a device, and the passes over it. Work is enqueued; where it fails, the waiting caller gets a
// device_error. submit(), submit_all(), run() and fetch_gradient() are called by one thread at a time; send_weights()
// by any.
class device_backend {
public:
    virtual ~device_backend() = default;

    // ---- What it has

    // Moves what has to be moved. Null: everything is copied back to the host, and has_device() is false from then on.
    // Throws what the device does, with everything where it was; where even that fails, the CPU has everything.
    virtual void place(std::shared_ptr<device> to, std::vector<shard_piece> const& where) = 0;
    [[nodiscard]] virtual bool has_device() const noexcept = 0;
    [[nodiscard]] virtual adamant::device const& device() const noexcept = 0; // has_device() only
    // The blocks that stay with the CPU, cut as gradients come down and weights go up.
    [[nodiscard]] virtual std::vector<block_range> cpu_ranges() const = 0;
    [[nodiscard]] virtual bool has_pieces() const noexcept = 0;
    [[nodiscard]] virtual bool has_pieces_of(std::size_t shard) const noexcept = 0;
    // Whether it can take its blocks back. If not, it never steps before the norm is known.
    [[nodiscard]] virtual bool has_records() const noexcept = 0;
    // Whether it was told to step, since forget_records(), and cannot take that back.
    [[nodiscard]] virtual bool stepped_for_good() const noexcept = 0;

    // ---- The passes of a step

    // The first pass over a shard's pieces, whose gradient is there, and over all shards.
    virtual void submit(std::size_t shard, block_pass pass) = 0;
    virtual void submit_all(block_pass pass) = 0;
    // A later pass, over all shards that take part.
    virtual void run(block_pass pass) = 0;
    // The gradient of a range that the CPU has comes down; then `arrived` is called in a thread of the device's.
    virtual void fetch_gradient(std::size_t range, std::function<void()> arrived) = 0;
    // The weights of a range that the CPU has go up, if they are wanted there.
    virtual void send_weights(std::size_t range) = 0;
    // Until all that was enqueued is done. Throws device_error where it fails, or is not done by the timeout.
    virtual void wait() = 0;
    // The same; then the block table has what this side has found. compare: the block table's sums stay, and the result
    // is whether this side's are the same.
    virtual bool wait_for_results(bool compare) = 0;
    // What the block table has of this side's blocks that take part.
    virtual void add_squares(squares_total& to) const noexcept = 0;
    // Throws device_error where something has failed, or the step takes longer than the timeout.
    virtual void require_answer() = 0;
    virtual void forget_records() noexcept = 0;
    // As offload_shard::first_nonfinite(), of a block that this side has; absent where the CPU has it.
    [[nodiscard]] virtual std::optional<std::size_t> first_nonfinite(std::size_t shard, std::size_t block) = 0;

    // ---- After a failure

    // Drops what has not begun. False where the device does not answer, or cannot go on.
    [[nodiscard]] virtual bool stop() noexcept = 0;
    // After that: rolls back all that has records, and sends the weights that the CPU's params have. False where the
    // device fails.
    [[nodiscard]] virtual bool roll_back() noexcept = 0;

    // ---- Between steps. These wait; they throw device_error.

    // Params and moments into the shards' own arrays, and the other way, with weights made of the params.
    virtual void copy_state_to_host() = 0;
    virtual void copy_state_from_host() = 0;
    // For accumulate(): brings the shard's gradient to where it is added, on both sides.
    virtual void bring_gradients(std::size_t shard) = 0;
    // Adds it, on this side. Where it throws, some of it may have been added.
    virtual void accumulate(std::size_t shard, bool first) = 0;
    // Does it; where it throws, nothing is left on the device's streams.
    template <class Work>
    void at_rest(Work const& work)
    {
        try {
            work();
        } catch (...) {
            (void)stop();
            throw;
        }
    }
};

} // namespace detail
ADAMANT_END_NAMESPACE
