// SPDX-License-Identifier: Apache-2.0
// How much memory steps need: what is known of blocks and shards, and the CPU's records.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/history.hpp>
#include <adamant/detail/engine/registry.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// All but the records. on_cpu: how many ranges of blocks the CPU has.
[[nodiscard]] inline std::size_t layout_bytes(registry const& over, std::size_t on_cpu,
                                              optimizer_options const& options) noexcept
{
    return over.blocks() * block_table::bytes_for_each_block(options.keep_last_step) +
           cpu_backend::bytes_for(on_cpu, over.size()) +
           over.size() *
               (step_history::bytes_for_each_shard + sizeof(shard_in_step) + written_memory::bytes_for_each_shard);
}

// The longest record of one block.
[[nodiscard]] inline std::size_t longest_record(registry const& over) noexcept
{
    std::size_t longest = 0;
    for (tracked_shard const& s : over.shards())
        if (s.shard.size() != 0)
            longest = std::max(longest, s.shard.record_bytes_at_most(s.shard.length(0)));
    return longest;
}
// What a journal needs for records of the given size: it wastes some at the ends of its pages, and each thread has one
// page open.
[[nodiscard]] inline std::size_t journal_bytes_for(std::size_t records, registry const& over, unsigned threads) noexcept
{
    return records + records / 8 + 16 * std::size_t{threads} * longest_record(over);
}
// Enough for all records of any one step over the blocks that the CPU has.
[[nodiscard]] inline std::size_t longest_journal(registry const& over, std::vector<block_range> const& on_cpu,
                                                 unsigned threads) noexcept
{
    std::size_t bytes = 0;
    for (block_range const& range : on_cpu) {
        offload_shard const& s = over[range.shard].shard;
        bytes += (range.blocks() - 1) * s.record_bytes_at_most(s.length(range.begin)) +
                 s.record_bytes_at_most(s.length(range.end - 1));
    }
    return journal_bytes_for(bytes, over, threads);
}
// What is allocated: no more than the options allow, nor than longest_journal().
[[nodiscard]] inline std::size_t journal_budget(optimizer_options const& options, registry const& over,
                                                std::vector<block_range> const& on_cpu, unsigned threads) noexcept
{
    std::size_t const longest = longest_journal(over, on_cpu, threads);
    if (options.journal_budget_bytes)
        return std::min(*options.journal_budget_bytes, longest);
    if (options.keep_last_step)
        return longest;
    std::size_t bytes = 0;
    for (block_range const& range : on_cpu) {
        offload_shard const& s = over[range.shard].shard;
        std::size_t const n = range.elements(s.size());
        bytes += s.records_are_copies() ? s.state_bytes(n) : 3 * n;
    }
    return std::min(longest, journal_bytes_for(bytes, over, threads));
}

} // namespace detail
ADAMANT_END_NAMESPACE
