// SPDX-License-Identifier: Apache-2.0
#include "cores_layout.hpp"

#include <algorithm>
#include <utility>

#include "cores_text.hpp"

namespace cli {

using namespace adamant;

namespace {

constexpr std::size_t many = 9; // of blocks that look alike are folded; eight nodes are usual, and drawn one by one
constexpr std::size_t bar_columns = 2; // between blocks of one row, besides the blank

} // namespace

cores_layout::cores_layout(machine const& machine, std::size_t cell_width) : on_(machine), width_(cell_width)
{
    find_blocks();
    find_gaps();
    find_sections();
}

void cores_layout::find_blocks()
{
    for (std::size_t c = 0; c < on_.cores.size(); ++c) {
        topology::core const& one = on_.cores[c];
        auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [&](block const& b) { return b.package == one.package && b.node == one.node; });
        if (found == blocks_.end())
            found = blocks_.insert(blocks_.end(), {one.package, one.node, {}});
        found->cores.push_back(c);
    }
    std::stable_sort(blocks_.begin(), blocks_.end(),
                     [](block const& a, block const& b) { return a.package < b.package; });
}

void cores_layout::find_gaps()
{
    std::size_t const none = on_.caches.size();
    auto const cache_of = [&](topology::core const& one, unsigned level) {
        for (std::size_t k = 0; k < none; ++k)
            if (on_.caches[k].level == level && on_.caches[k].pus.intersects(one.pus))
                return k;
        return none;
    };
    std::vector<std::size_t> cores_in(none + 1);
    std::vector<std::pair<std::size_t, std::size_t>> of;
    for (topology::core const& one : on_.cores) {
        of.emplace_back(cache_of(one, 2), cache_of(one, 3));
        ++cores_in[of.back().first];
        ++cores_in[of.back().second];
    }
    gaps_.assign(on_.cores.size(), 0);
    for (std::size_t c = 1; c < gaps_.size(); ++c) {
        auto const differ = [&](std::size_t a, std::size_t b) { // caches of a core each are no groups
            return a != b && (cores_in[a] > 1 || cores_in[b] > 1);
        };
        if (differ(of[c - 1].second, of[c].second))
            gaps_[c] = 2;
        else if (differ(of[c - 1].first, of[c].first))
            gaps_[c] = 1;
    }
}

pu_set cores_layout::pus_of(core_list const& list) const
{
    pu_set all;
    for (std::size_t const c : list)
        all |= on_.cores[c].pus;
    return all;
}

// Columns of cores in a row.
std::size_t cores_layout::columns(core_list const& row) const
{
    std::size_t sum = 0;
    for (std::size_t k = 0; k < row.size(); ++k)
        sum += width_ + (k == 0 ? 0 : 1 + gaps_[row[k]]);
    return sum;
}

// The rows of a block, which end where a cache ends if that can be.
std::vector<core_list> cores_layout::rows_of(block const& b) const
{
    std::vector<core_list> groups;
    for (unsigned const gap : {2u, 1u}) { // third-level caches, or where those are larger than a row, second-level
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
    std::vector<core_list> parts; // that fit in a row
    for (core_list const& group : groups) {
        std::size_t const most = (cell_columns + 1) / (width_ + 1);
        std::size_t const step = columns(group) <= cell_columns ? group.size() : per_row(group.size(), most);
        for (std::size_t begin = 0; begin < group.size(); begin += step)
            parts.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(begin),
                               group.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, group.size())));
    }
    bool const alike = std::all_of(parts.begin(), parts.end(),
                                   [&](core_list const& part) { return part.size() == parts.front().size(); });
    std::size_t const most = (cell_columns + 3) / (columns(parts.front()) + 3);
    std::size_t const step = alike ? per_row(parts.size(), std::max<std::size_t>(most, 1)) : parts.size();
    std::vector<core_list> rows;
    std::size_t in_row = step;
    for (core_list const& part : parts) {
        if (in_row == step || (!alike && columns(rows.back()) + 3 + columns(part) > cell_columns)) {
            rows.emplace_back();
            in_row = 0;
        }
        rows.back().insert(rows.back().end(), part.begin(), part.end());
        ++in_row;
    }
    return rows;
}

// Whether two blocks that follow each other may stand under one title: with memory of their own of one kind, with the
// same, or both with none, and nothing else near one of them alone.
bool cores_layout::alike(block const& a, block const& b) const
{
    auto const shared = [&](block const& one) {
        return std::count_if(blocks_.begin(), blocks_.end(), [&](block const& x) { return x.node == one.node; }) > 1;
    };
    auto const plain = [&](block const& one) { return other_nodes(one).empty() && gpus(one).empty(); };
    bool const memory = a.node == b.node || (!shared(a) && !shared(b) && memory_text(a.node) == memory_text(b.node));
    return a.cores.size() == b.cores.size() && memory && caches_text(a) == caches_text(b) && plain(a) && plain(b);
}

void cores_layout::find_sections()
{
    for (std::size_t begin = 0; begin < blocks_.size();) {
        block const& first = blocks_[begin];
        std::size_t end = begin + 1;
        while (end < blocks_.size() && alike(first, blocks_[end]))
            ++end;
        std::size_t widest = 0;
        for (std::size_t b = begin; b < end; ++b)
            widest = std::max(widest, columns(blocks_[b].cores));
        std::size_t const bar = first.cores.size() == 1 ? 0 : bar_columns;
        std::size_t const most = (cell_columns + 1 + bar) / (widest + 1 + bar);
        if (end - begin < many || most < 2)
            end = begin + 1;
        section& made = sections_.emplace_back();
        made.blocks.assign(blocks_.begin() + static_cast<std::ptrdiff_t>(begin),
                           blocks_.begin() + static_cast<std::ptrdiff_t>(end));
        if (!made.folded())
            for (core_list& row : rows_of(first))
                made.rows.push_back({std::move(row)});
        std::size_t const step = made.folded() ? per_row(end - begin, most) : 1;
        for (std::size_t b = 0; made.folded() && b < made.blocks.size(); ++b) {
            if (b % step == 0)
                made.rows.emplace_back();
            made.rows.back().push_back(made.blocks[b].cores);
        }
        begin = end;
    }
}

std::vector<block const*> cores_layout::blocks_near(pu_set const& pus) const
{
    std::vector<block const*> found;
    for (block const& b : blocks_)
        if (pus_of(b.cores).intersects(pus))
            found.push_back(&b);
    return found;
}

bool cores_layout::is_a_blocks(std::size_t node) const
{
    return std::any_of(blocks_.begin(), blocks_.end(), [&](block const& b) { return b.node == node; });
}

std::string cores_layout::memory_text(std::size_t n) const
{
    if (n >= on_.nodes.size())
        return "no local memory";
    topology::numa_node const& node = on_.nodes[n];
    return (node.bytes == 0 ? "" : size_text(node.bytes) + " of ") + std::string(name(node.kind)) +
           (node.allowed ? "" : ", which this process may not use");
}

std::string cores_layout::caches_text(block const& b) const
{
    std::size_t count = 0;
    std::size_t bytes = 0;
    for (topology::cache const& one : on_.caches)
        if (one.level == 3 && one.pus.intersects(pus_of(b.cores))) {
            if (++count > 1 && one.bytes != bytes)
                return "";
            bytes = one.bytes;
        }
    if (bytes == 0)
        return "";
    return ", " + (count == 1 ? "" : std::to_string(count) + " ") + "L3 of " + size_text(bytes);
}

std::vector<std::size_t> cores_layout::other_nodes(block const& b) const
{
    std::vector<std::size_t> found;
    for (std::size_t n = 0; n < on_.nodes.size(); ++n)
        if (!is_a_blocks(n))
            if (auto const near = blocks_near(on_.nodes[n].pus); near.size() == 1 && near.front()->cores == b.cores)
                found.push_back(n);
    return found;
}

std::vector<std::size_t> cores_layout::gpus(block const& b) const
{
    std::vector<std::size_t> found;
    for (std::size_t g = 0; g < on_.gpus.size(); ++g)
        if (auto const near = blocks_near(on_.gpus[g].pus); near.size() == 1 && near.front()->cores == b.cores)
            found.push_back(g);
    return found;
}

} // namespace cli
