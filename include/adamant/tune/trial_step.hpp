// SPDX-License-Identifier: Apache-2.0
// Steps that are taken to be timed: arrays of one shard with values as training has them, out of anybody's use.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/shard/any_shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// Arrays of n elements, first touched by the executor's threads, each where it will be used, in memory of these
// options. Values decide which path a kernel takes, so they are those of training: no two neighbours alike, no zeros,
// second moments that go with the gradients. The arrays begin at a cache line and at different offsets in their pages,
// as a program's do; at equal ones each load would wait for another array's store.
class trial_step {
public:
    // Throws what memory_block does, unavailable where there is too little memory among others.
    trial_step(executor const& cpu, shard_format const& format, std::size_t n, memory_options const& memory = {});

    [[nodiscard]] std::size_t size() const noexcept { return n_; }
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    [[nodiscard]] std::vector<memory_block> const& blocks() const noexcept { return blocks_; }
    [[nodiscard]] std::byte* array(std::size_t k) noexcept;

    // Takes one step, AdamW with a learning rate so small that nothing runs away, and returns what it took.
    double seconds(executor const& cpu);

private:
    static constexpr std::size_t apart = 1088;        // bytes, a multiple of a cache line, odd in a page
    static constexpr std::size_t period_elems = 4096; // after which values come again, so that arrays are made soon

    void fill(std::size_t k, slice part);

    shard_format const* format_;
    std::size_t n_;
    std::vector<memory_block> blocks_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/trial_step.ipp>
#endif
