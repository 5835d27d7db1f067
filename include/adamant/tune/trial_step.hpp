// SPDX-License-Identifier: Apache-2.0
// Steps to be timed, on arrays of their own with values as in training.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/shard/any_shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// Arrays of n elements in memory of these options, first touched by the executor's threads, each element where it will
// be used. Values decide which path a kernel takes, so they are like those of training: neighbours differ, there are no
// zeros, and second moments fit the gradients. The arrays begin at a cache line and at different offsets in their
// pages, as a program's do; at equal offsets each load would wait for another array's store.
class trial_step {
public:
    // Throws what memory_block throws: unavailable where there is too little memory, among others.
    trial_step(executor const& cpu, shard_format const& format, std::size_t n, memory_options const& memory = {});

    [[nodiscard]] std::size_t size() const noexcept { return n_; }
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    [[nodiscard]] std::vector<memory_block> const& blocks() const noexcept { return blocks_; }
    [[nodiscard]] std::byte* array(std::size_t k) noexcept;

    // Takes one step of AdamW, with a learning rate so small that values stay in range, and returns its time.
    double seconds(executor const& cpu);

private:
    static constexpr std::size_t apart = 1088;        // bytes, a multiple of a cache line, odd in a page
    static constexpr std::size_t period_elems = 4096; // after which values repeat, so that arrays are filled quickly

    void fill(std::size_t k, slice part);

    shard_format const* format_;
    std::size_t n_;
    std::vector<memory_block> blocks_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/trial_step.ipp>
#endif
