// SPDX-License-Identifier: Apache-2.0
// trial_step: arrays of a model's size, and timed steps over them. A part of <adamant/tune.hpp>.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/memory.hpp>
#include <adamant/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Arrays of n elements, and timed steps over them.
///
/// The executor's threads first touch each element where they will use it. A kernel's path depends on values, so these
/// resemble those of training: neighbors differ, there are no zeros, and second moments match the gradients. The
/// arrays begin at cache lines and at different offsets in their pages, as in a real program; with equal offsets each
/// load would wait for a store to another array.
class trial_step {
public:
    /// Allocates and fills the arrays.
    /// @throws what memory_block throws, such as unavailable if there is too little memory.
    trial_step(executor const& cpu, shard_format const& format, std::size_t n, memory_options const& memory = {});

    /// Returns the number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return n_; }
    /// Returns the types of the arrays.
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    /// Returns the memory of the arrays.
    [[nodiscard]] std::vector<memory_block> const& blocks() const noexcept { return blocks_; }
    /// Returns array number k, by shard_array.
    [[nodiscard]] std::byte* array(std::size_t k) noexcept;

    /// Takes one step of AdamW and returns its duration.
    ///
    /// The learning rate is small enough to keep values in range.
    double seconds(executor const& cpu);

private:
    // Bytes between the offsets of arrays: a multiple of a cache line that does not divide a page.
    static constexpr std::size_t offset_step_bytes = 1088;
    static constexpr std::size_t period_elems = 4096; // values repeat after this many elements, so that filling is fast

    void fill(std::size_t k, slice part);

    shard_format const* format_;
    std::size_t n_;
    std::vector<memory_block> blocks_;
};

ADAMANT_END_NAMESPACE
