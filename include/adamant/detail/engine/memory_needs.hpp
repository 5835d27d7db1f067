// SPDX-License-Identifier: Apache-2.0
// Memory requirements of steps: the per-block and per-shard tables, and the journal of the CPU's records.
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

// Bytes of everything except the records, if the CPU has `cpu_ranges` ranges of blocks.
[[nodiscard]] inline std::size_t layout_bytes(registry const& shard_registry, std::size_t cpu_ranges,
                                              optimizer_options const& options) noexcept
{
    return shard_registry.blocks() * block_table::bytes_for_each_block(options.keep_last_step) +
           cpu_backend::bytes_for(cpu_ranges, shard_registry.size()) +
           shard_registry.size() *
               (step_history::bytes_for_each_shard + sizeof(shard_in_step) + written_memory::bytes_for_each_shard);
}

// Bytes of the longest record of one block.
[[nodiscard]] inline std::size_t longest_record(registry const& shard_registry) noexcept
{
    std::size_t longest = 0;
    for (tracked_shard const& s : shard_registry.shards())
        if (s.shard.size() != 0)
            longest = std::max(longest, s.shard.record_bytes_at_most(s.shard.length(0)));
    return longest;
}
// Journal bytes for records of the given ranges. record_bytes: of a record of n elements. The journal wastes space at
// the ends of its pages, and each thread keeps one page open.
[[nodiscard]] inline std::size_t journal_bytes(registry const& shard_registry,
                                               std::vector<block_range> const& cpu_ranges, unsigned threads,
                                               std::size_t (offload_shard::*record_bytes)(std::size_t)
                                                   const noexcept) noexcept
{
    std::size_t bytes = 0;
    for (block_range const& range : cpu_ranges) {
        offload_shard const& s = shard_registry[range.shard].shard;
        bytes += (range.blocks() - 1) * (s.*record_bytes)(s.length(range.begin)) +
                 (s.*record_bytes)(s.length(range.end - 1));
    }
    return bytes + bytes / 8 + 16 * std::size_t{threads} * longest_record(shard_registry);
}
// Journal bytes that suffice for any step over the given ranges.
[[nodiscard]] inline std::size_t longest_journal(registry const& shard_registry,
                                                 std::vector<block_range> const& cpu_ranges, unsigned threads) noexcept
{
    return journal_bytes(shard_registry, cpu_ranges, threads, &offload_shard::record_bytes_at_most);
}
// Journal bytes that suffice for steps over ordinary data.
[[nodiscard]] inline std::size_t usual_journal(registry const& shard_registry,
                                               std::vector<block_range> const& cpu_ranges, unsigned threads) noexcept
{
    return journal_bytes(shard_registry, cpu_ranges, threads, &offload_shard::usual_record_bytes);
}
// Journal bytes to allocate: at most the budget in the options, and at most longest_journal().
[[nodiscard]] inline std::size_t journal_budget(optimizer_options const& options, registry const& shard_registry,
                                                std::vector<block_range> const& cpu_ranges, unsigned threads) noexcept
{
    std::size_t const longest = longest_journal(shard_registry, cpu_ranges, threads);
    if (options.journal_budget_bytes)
        return std::min(*options.journal_budget_bytes, longest);
    return options.keep_last_step ? longest : usual_journal(shard_registry, cpu_ranges, threads);
}

} // namespace detail
ADAMANT_END_NAMESPACE
