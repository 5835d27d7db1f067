// SPDX-License-Identifier: Apache-2.0
// The interface of the device backend, as the step session sees it. Programs without a device compile no
// implementation.
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

// The elements on a device, and the passes over them. Functions enqueue work; if that work fails, the next wait throws
// device_error. Call submit(), run() and fetch_gradient() from one thread at a time; send_weights() from any.
class device_backend {
public:
    virtual ~device_backend() = default;

    // ---- Contents

    // Moves pieces to `target` and back. Null: copies everything back to the host, and has_device() is false from then
    // on. If the device throws, this rethrows and every piece stays where it was; if that fails, too, the CPU has all.
    virtual void place(std::shared_ptr<device> target, std::vector<shard_piece> const& pieces) = 0;
    [[nodiscard]] virtual bool has_device() const noexcept = 0;
    [[nodiscard]] virtual adamant::device const& device() const noexcept = 0; // has_device() only
    // The blocks of the CPU, in the ranges by which gradients are downloaded and weights uploaded.
    [[nodiscard]] virtual std::vector<block_range> cpu_ranges() const = 0;
    [[nodiscard]] virtual bool has_pieces() const noexcept = 0;
    [[nodiscard]] virtual bool has_pieces_of(std::size_t shard) const noexcept = 0;
    // Whether the device reads the shard's gradient in host memory.
    [[nodiscard]] virtual bool shares_gradient(std::size_t shard) const noexcept = 0;
    // Whether it can roll back its blocks. If not, it never steps before the norm is known.
    [[nodiscard]] virtual bool has_records() const noexcept = 0;
    // Whether it has enqueued a step since forget_records() that it cannot roll back.
    [[nodiscard]] virtual bool stepped_for_good() const noexcept = 0;

    // ---- The passes of a step

    // Enqueues the first pass over the shards of [begin, end) that take part, whose gradients are complete.
    virtual void submit(std::size_t begin, std::size_t end, block_pass pass) = 0;
    // Enqueues a later pass, over all shards that take part.
    virtual void run(block_pass pass) = 0;
    // Downloads the gradient of a CPU range; then the device calls `arrived` in a thread of its own.
    virtual void fetch_gradient(std::size_t range, std::function<void()> arrived) = 0;
    // Uploads the weights of a CPU range, if the shard has arrays on the device.
    virtual void send_weights(std::size_t range) = 0;
    // Waits for all enqueued work. Throws device_error if it fails or exceeds the timeout.
    virtual void wait() = 0;
    // Waits, then stores the results of the device's blocks in the block table.
    virtual void wait_for_results() = 0;
    // As wait_for_results(), but keeps the sums in the table, and returns whether the device's sums equal them.
    [[nodiscard]] virtual bool compare_results() = 0;
    // Adds the sums of the device's blocks that take part, from the block table.
    virtual void add_squares(squares_total& total) const noexcept = 0;
    // Throws device_error if work has failed, or the step exceeds the timeout.
    virtual void require_answer() = 0;
    virtual void forget_records() noexcept = 0;
    // offload_shard::first_nonfinite() of a block on the device; nullopt for a block whose gradient is in host memory.
    [[nodiscard]] virtual std::optional<std::size_t> first_nonfinite(std::size_t shard, std::size_t block) = 0;

    // ---- Changed weights

    // Adds what the last step changed on the device to the shards' bits. Call once, when the step is complete.
    virtual void commit_changes() noexcept = 0;
    // Rolls back commit_changes(), see offload_shard::restore_changes().
    virtual void restore_changes() noexcept = 0;

    // ---- After a failure

    // Drops work that has not started. Returns false if the device does not answer or cannot continue.
    [[nodiscard]] virtual bool stop() noexcept = 0;
    // Call after stop(). Rolls back all blocks that have records, and uploads the weights of the CPU's params. Returns
    // false if the device fails.
    [[nodiscard]] virtual bool roll_back() noexcept = 0;

    // ---- Between steps. These wait, and throw device_error.

    // Copies params and moments to the shards' arrays; and from there, rounding the weights from the params.
    virtual void copy_state_to_host() = 0;
    virtual void copy_state_from_host() = 0;
    // Copies the shard's gradient to the memory in which each backend accumulates it.
    virtual void bring_gradients(std::size_t shard) = 0;
    // Accumulates the gradient of the device's pieces. If it throws, some elements may have been added.
    virtual void accumulate(std::size_t shard, bool first) = 0;
    // Calls work(). If that throws, clears the device's streams before rethrowing.
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
