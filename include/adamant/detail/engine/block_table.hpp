// SPDX-License-Identifier: Apache-2.0
// The table of blocks of an optimizer's shards in a step: sum of squares, record and checksum of each block.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/detail/engine/journal.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/numerics/grad_squares.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Block indices run through all shards in order. Both backends write their results here. Threads may write entries of
// different blocks concurrently. Call the const functions only between passes.
class block_table {
public:
    // Bytes that build_layout() allocates per block.
    [[nodiscard]] static constexpr std::size_t bytes_for_each_block(bool keeps_checksums) noexcept
    {
        return sizeof(grad_squares) + sizeof(std::byte*) + (keeps_checksums ? sizeof(std::uint64_t) : 0);
    }
    // Clears the table and resizes it to `blocks`. Allocates.
    void build_layout(std::size_t blocks, bool keeps_checksums)
    {
        squares_.assign(blocks, {});
        records_.assign(blocks, nullptr);
        checksums_.assign(keeps_checksums ? blocks : 0, 0);
    }

    [[nodiscard]] grad_squares& squares(std::size_t block) noexcept { return squares_[block]; }
    [[nodiscard]] grad_squares const& squares(std::size_t block) const noexcept { return squares_[block]; }
    // The record from which the CPU can roll back the block; null if the block was not stepped with a record.
    [[nodiscard]] std::byte*& record(std::size_t block) noexcept { return records_[block]; }
    // Checksum of the gradient that the record was made with. Requires keeps_checksums.
    [[nodiscard]] std::uint64_t& checksum(std::size_t block) noexcept { return checksums_[block]; }
    // Stores the result of a block on the device. recorded: the device can roll it back.
    void set_device_result(std::size_t block, grad_squares const& squares, bool recorded) noexcept
    {
        squares_[block] = squares;
        records_[block] = recorded ? &on_device_ : nullptr;
    }

    // Memory of the CPU's records.
    [[nodiscard]] journal& records() noexcept { return journal_; }
    [[nodiscard]] std::size_t record_bytes() const noexcept { return journal_.bytes(); }
    void forget_records() noexcept
    {
        journal_.clear();
        std::fill(records_.begin(), records_.end(), nullptr);
    }

    // The first block of a shard with a non-finite gradient; the number of blocks if all gradients are finite.
    [[nodiscard]] std::size_t first_nonfinite_block(tracked_shard const& s) const noexcept
    {
        std::size_t b = 0;
        while (b < s.shard.blocks() && squares_[s.first_block + b].nonfinite == 0)
            ++b;
        return b;
    }
    // Number of blocks of submitted shards that cannot be rolled back, on either backend.
    [[nodiscard]] std::size_t unrecorded_blocks(registry const& shard_registry, step_plan const& plan) const noexcept
    {
        std::size_t n = 0;
        for (std::size_t i = 0; i < shard_registry.size(); ++i)
            if (plan.shards[i] == shard_in_step::submitted) {
                auto const first = records_.begin() + static_cast<std::ptrdiff_t>(shard_registry[i].first_block);
                n += static_cast<std::size_t>(
                    std::count(first, first + static_cast<std::ptrdiff_t>(shard_registry[i].shard.blocks()), nullptr));
            }
        return n;
    }
    // Number of elements of a shard that the CPU has stepped with a record.
    [[nodiscard]] std::size_t recorded_elements(tracked_shard const& s) const noexcept
    {
        std::size_t elements = 0;
        for (std::size_t b = 0; b < s.shard.blocks(); ++b) {
            std::byte const* const record = records_[s.first_block + b];
            if (record != nullptr && record != &on_device_)
                elements += s.shard.length(b);
        }
        return elements;
    }

private:
    static inline std::byte on_device_{}; // sentinel: the record is on the device
    std::vector<grad_squares> squares_;
    std::vector<std::byte*> records_;
    std::vector<std::uint64_t> checksums_;
    journal journal_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
