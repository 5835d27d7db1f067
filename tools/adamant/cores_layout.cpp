// SPDX-License-Identifier: Apache-2.0
// Definitions of cores_layout.hpp.
#include "cores_layout.hpp"

#include <algorithm>
#include <utility>

#include "cores_text.hpp"

namespace cli {

using namespace adamant;

namespace {

constexpr std::size_t min_folded = 9;  // equal blocks from this number on share a title; eight nodes are usual
constexpr std::size_t bar_columns = 2; // between blocks of a row, in addition to the blank

} // namespace

cores_layout::cores_layout(machine const& machine, std::size_t cell_width) : host_(machine), width_(cell_width)
{
    find_blocks();
    find_gaps();
    find_sections();
}

void cores_layout::find_blocks()
{
    for (std::size_t c = 0; c < host_.cores.size(); ++c) {
        topology::core const& core = host_.cores[c];
        auto match = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](block const& b) { return b.package == core.package && b.node == core.node; });
        if (match == blocks_.end())
            match = blocks_.insert(blocks_.end(), {core.package, core.node, {}});
        match->cores.push_back(c);
    }
    std::stable_sort(blocks_.begin(), blocks_.end(),
                     [](block const& a, block const& b) { return a.package < b.package; });
}

void cores_layout::find_gaps()
{
    std::size_t const none = host_.caches.size();
    auto const cache_of = [&](topology::core const& core, unsigned level) {
        for (std::size_t k = 0; k < none; ++k)
            if (host_.caches[k].level == level && host_.caches[k].pus.intersects(core.pus))
                return k;
        return none;
    };
    std::vector<std::size_t> cores_in(none + 1);
    std::vector<std::pair<std::size_t, std::size_t>> caches;
    for (topology::core const& core : host_.cores) {
        caches.emplace_back(cache_of(core, 2), cache_of(core, 3));
        ++cores_in[caches.back().first];
        ++cores_in[caches.back().second];
    }
    gaps_.assign(host_.cores.size(), 0);
    for (std::size_t c = 1; c < gaps_.size(); ++c) {
        auto const differ = [&](std::size_t a, std::size_t b) { // caches of a single core form no groups
            return a != b && (cores_in[a] > 1 || cores_in[b] > 1);
        };
        if (differ(caches[c - 1].second, caches[c].second))
            gaps_[c] = 2;
        else if (differ(caches[c - 1].first, caches[c].first))
            gaps_[c] = 1;
    }
}

pu_set cores_layout::pus_of(core_list const& list) const
{
    pu_set all;
    for (std::size_t const c : list)
        all |= host_.cores[c].pus;
    return all;
}

// Returns the columns of cores in a row.
std::size_t cores_layout::columns(core_list const& row) const
{
    std::size_t sum = 0;
    for (std::size_t k = 0; k < row.size(); ++k)
        sum += width_ + (k == 0 ? 0 : 1 + gaps_[row[k]]);
    return sum;
}

// Returns the rows of a block, which end at the end of a cache if possible.
std::vector<core_list> cores_layout::rows_of(block const& b) const
{
    std::vector<core_list> groups;
    for (unsigned const gap : {2u, 1u}) { // L3 caches, or L2 caches if those are larger than a row
        groups.clear();
        for (std::size_t const c : b.cores) {
            if (groups.empty() || gaps_[c] >= gap)
                groups.emplace_back();
            groups.back().push_back(c);
        }
        if (std::all_of(groups.begin(), groups.end(),
                        [&](core_list const& group) { return columns(group) <= cell_columns; }))
            break;
    }
    std::vector<core_list> parts; // each fits in a row
    for (core_list const& group : groups) {
        std::size_t const most = (cell_columns + 1) / (width_ + 1);
        std::size_t const step = columns(group) <= cell_columns ? group.size() : per_row(group.size(), most);
        for (std::size_t begin = 0; begin < group.size(); begin += step)
            parts.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(begin),
                               group.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, group.size())));
    }
    bool const is_uniform = std::all_of(parts.begin(), parts.end(),
                                        [&](core_list const& part) { return part.size() == parts.front().size(); });
    std::size_t const most = (cell_columns + 3) / (columns(parts.front()) + 3);
    std::size_t const step = is_uniform ? per_row(parts.size(), std::max<std::size_t>(most, 1)) : parts.size();
    std::vector<core_list> rows;
    std::size_t in_row = step;
    for (core_list const& part : parts) {
        if (in_row == step || (!is_uniform && columns(rows.back()) + 3 + columns(part) > cell_columns)) {
            rows.emplace_back();
            in_row = 0;
        }
        rows.back().insert(rows.back().end(), part.begin(), part.end());
        ++in_row;
    }
    return rows;
}

// Returns whether two adjacent blocks may share a title: their memory is equal, shared or missing, and no other memory
// or GPU is near only one of them.
bool cores_layout::can_share_title(block const& a, block const& b) const
{
    auto const shared = [&](block const& candidate) {
        return std::count_if(blocks_.begin(), blocks_.end(), [&](block const& x) { return x.node == candidate.node; }) >
               1;
    };
    auto const plain = [&](block const& candidate) {
        return other_nodes(candidate).empty() && gpus(candidate).empty();
    };
    bool const memory = a.node == b.node || (!shared(a) && !shared(b) && memory_text(a.node) == memory_text(b.node));
    return a.cores.size() == b.cores.size() && memory && caches_text(a) == caches_text(b) && plain(a) && plain(b);
}

void cores_layout::find_sections()
{
    for (std::size_t begin = 0; begin < blocks_.size();) {
        block const& first = blocks_[begin];
        std::size_t end = begin + 1;
        while (end < blocks_.size() && can_share_title(first, blocks_[end]))
            ++end;
        std::size_t widest = 0;
        for (std::size_t b = begin; b < end; ++b)
            widest = std::max(widest, columns(blocks_[b].cores));
        std::size_t const bar = first.cores.size() == 1 ? 0 : bar_columns;
        std::size_t const most = (cell_columns + 1 + bar) / (widest + 1 + bar);
        if (end - begin < min_folded || most < 2)
            end = begin + 1;
        section& result = sections_.emplace_back();
        result.blocks.assign(blocks_.begin() + static_cast<std::ptrdiff_t>(begin),
                             blocks_.begin() + static_cast<std::ptrdiff_t>(end));
        if (!result.folded())
            for (core_list& row : rows_of(first))
                result.rows.push_back({std::move(row)});
        std::size_t const step = result.folded() ? per_row(end - begin, most) : 1;
        for (std::size_t b = 0; result.folded() && b < result.blocks.size(); ++b) {
            if (b % step == 0)
                result.rows.emplace_back();
            result.rows.back().push_back(result.blocks[b].cores);
        }
        begin = end;
    }
}

std::vector<block const*> cores_layout::blocks_near(pu_set const& pus) const
{
    std::vector<block const*> result;
    for (block const& b : blocks_)
        if (pus_of(b.cores).intersects(pus))
            result.push_back(&b);
    return result;
}

bool cores_layout::has_block(std::size_t node) const
{
    return std::any_of(blocks_.begin(), blocks_.end(), [&](block const& b) { return b.node == node; });
}

std::string cores_layout::memory_text(std::size_t n) const
{
    if (n >= host_.nodes.size())
        return "no local memory";
    topology::numa_node const& node = host_.nodes[n];
    return (node.bytes == 0 ? "" : size_text(node.bytes) + " of ") + std::string(name(node.kind)) +
           (node.allowed ? "" : ", which this process may not use");
}

std::string cores_layout::caches_text(block const& b) const
{
    std::size_t count = 0;
    std::size_t bytes = 0;
    for (topology::cache const& cache : host_.caches)
        if (cache.level == 3 && cache.pus.intersects(pus_of(b.cores))) {
            if (++count > 1 && cache.bytes != bytes)
                return "";
            bytes = cache.bytes;
        }
    if (bytes == 0)
        return "";
    return ", " + (count == 1 ? "" : std::to_string(count) + " ") + "L3 of " + size_text(bytes);
}

std::vector<std::size_t> cores_layout::other_nodes(block const& b) const
{
    std::vector<std::size_t> result;
    for (std::size_t n = 0; n < host_.nodes.size(); ++n)
        if (!has_block(n))
            if (auto const near = blocks_near(host_.nodes[n].pus); near.size() == 1 && near.front()->cores == b.cores)
                result.push_back(n);
    return result;
}

std::vector<std::size_t> cores_layout::gpus(block const& b) const
{
    std::vector<std::size_t> result;
    for (std::size_t g = 0; g < host_.gpus.size(); ++g)
        if (auto const near = blocks_near(host_.gpus[g].pus); near.size() == 1 && near.front()->cores == b.cores)
            result.push_back(g);
    return result;
}

} // namespace cli
