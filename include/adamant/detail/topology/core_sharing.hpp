// SPDX-License-Identifier: Apache-2.0
// Division of a pool of cores between ranks, for select_cores().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/topology/core_locality.hpp>
#include <adamant/detail/topology/node_search.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class core_sharing : protected core_locality {
protected:
    using core_locality::core_locality;

    // Returns the least number of cores of each rank in one node: the preferred number, then acceptable smaller ones.
    std::vector<std::size_t> minimum_cores(std::size_t pool, unsigned ranks) const
    {
        if (list_is_the_optimizers())
            return {pool / ranks / 2, 1};
        if (request_.cpuadam_cores)
            return {*request_.cpuadam_cores + std::size_t{1},
                    *request_.cpuadam_cores + std::size_t{*request_.cpuadam_cores != 1}};
        if (request_.pt_reserved_cores)
            return {*request_.pt_reserved_cores + std::size_t{1}};
        return {std::max<std::size_t>(pool / ranks / 2, 2), 2, 1};
    }

    // Divides the cores of a pool. If possible, each rank stays inside one NUMA node, and each node with enough cores
    // for a rank has one. Otherwise all cores are divided in the order of the machine, or around base nodes if the
    // optimizers then have fewer nodes or are nearer to their GPUs.
    std::vector<core_list> assign(core_list const& pool, unsigned first, unsigned ranks)
    {
        std::vector<group> groups = by_node(pool);
        distances const gpu_distances = distances_of(pool, first, ranks);
        if (ranks >= groups.size())
            for (std::size_t const min_cores : minimum_cores(pool.size(), ranks)) {
                if (!spread(groups, std::max<std::size_t>(min_cores, 1), gpu_distances))
                    continue;
                if (list_is_the_optimizers() &&
                    std::any_of(groups.begin(), groups.end(), [](group const& g) { return g.ranks.empty(); }))
                    break;
                std::vector<core_list> parts(ranks);
                for (group const& g : groups)
                    divide_node(g, parts);
                set_unit({parts});
                return assign_nearest(std::move(parts), gpu_distances);
            }
        std::size_t const size = pool.size() / ranks;
        std::size_t const slack =
            std::min(size / 16, (size - std::min(size, minimum_cores(pool.size(), ranks).front())) / 2);
        std::vector<core_list> ordered_parts = partition_in_order(groups, ranks, slack);
        std::vector<core_list> base_parts = divide_around_bases(groups, gpu_distances, slack);
        std::vector<core_list> even_parts = divide_around_bases(groups, gpu_distances, 0);
        set_unit({ordered_parts, base_parts, even_parts});
        ordered_parts = assign_nearest(std::move(ordered_parts), gpu_distances);
        if (ranks == 1)
            return ordered_parts;
        base_parts = assign_nearest(std::move(base_parts), gpu_distances);
        even_parts = assign_nearest(std::move(even_parts), gpu_distances);
        if (rate(even_parts, gpu_distances).nodes < rate(base_parts, gpu_distances).nodes)
            base_parts = std::move(even_parts);
        std::vector<core_list> parts =
            !base_parts.empty() && rate(base_parts, gpu_distances) < rate(ordered_parts, gpu_distances)
                ? std::move(base_parts)
                : std::move(ordered_parts);
        for (rating old_rating = rate(parts, gpu_distances);;) {
            if (!search(groups, parts, gpu_distances)) {
                do
                    parts = assign_nearest(std::move(parts), gpu_distances);
                while (exchange_cores(parts, gpu_distances) || swap_nodes(groups, parts, gpu_distances));
                return parts;
            }
            parts = assign_nearest(std::move(parts), gpu_distances); // the sizes may differ
            rating const new_rating = rate(parts, gpu_distances);
            if (!(new_rating < old_rating))
                return parts;
            old_rating = new_rating;
        }
    }

    // Replaces parts by better ones of the same sizes, if it finds any. Returns false if better ones may exist: the
    // search took too long, or cores of one node have different distances.
    bool search(std::vector<group> const& groups, std::vector<core_list>& parts, distances const& gpu_distances) const
    {
        node_search::counts capacity, optimizer_cores;
        std::vector<node_search::costs> cost(parts.size());
        for (group const& g : groups) {
            capacity.push_back(g.cores.size());
            for (std::size_t r = 0; r < parts.size(); ++r)
                if (g.node == no_node || std::any_of(g.cores.begin(), g.cores.end(), [&](unsigned c) {
                        return gpu_distances[r][c] != gpu_distances[r][g.cores.front()];
                    }))
                    return false;
        }
        for (std::size_t r = 0; r < parts.size(); ++r) {
            optimizer_cores.push_back(optimizer_share(parts[r].size()));
            for (group const& g : groups)
                cost[r].push_back(
                    mean_distance(g.cores, 1, gpu_distances[r], unit_ / static_cast<std::int64_t>(optimizer_cores[r])));
        }
        rating const old_rating = rate(parts, gpu_distances);
        node_search nodes(std::move(capacity), optimizer_cores, cost);
        auto const shares = nodes.find_better({old_rating.nodes, old_rating.distance});
        if (!shares)
            return nodes.complete();
        std::vector<core_list> candidates(parts.size());
        std::vector<core_list> remaining;
        auto const give = [&](std::size_t r, std::size_t n, std::size_t count) {
            auto const end = remaining[n].begin() + static_cast<std::ptrdiff_t>(std::min(count, remaining[n].size()));
            candidates[r].insert(candidates[r].end(), remaining[n].begin(), end);
            remaining[n].erase(remaining[n].begin(), end);
        };
        for (group const& g : groups)
            remaining.push_back(g.cores);
        for (std::size_t r = 0; r < parts.size(); ++r)
            for (std::size_t n = 0; n < groups.size(); ++n)
                give(r, n, (*shares)[r][n]);
        for (bool const same_node : {true, false}) // the hosts' cores, first in the nodes of their optimizers
            for (std::size_t r = 0; r < parts.size(); ++r)
                for (std::size_t n = 0; n < groups.size(); ++n)
                    if (!same_node || (*shares)[r][n] != 0)
                        give(r, n, parts[r].size() - candidates[r].size());
        for (core_list& part : candidates)
            std::sort(part.begin(), part.end());
        if (rate(candidates, gpu_distances) < old_rating)
            parts = std::move(candidates);
        return nodes.complete();
    }

    // Exchanges cores in two nodes between pairs of ranks if that makes the parts better. Returns whether it did.
    bool exchange_cores(std::vector<core_list>& parts, distances const& gpu_distances) const
    {
        auto const try_exchange = [&](std::size_t a, std::size_t b) {
            rating const old_rating = rate({parts[a], parts[b]}, {gpu_distances[a], gpu_distances[b]});
            for (group const& i : by_node(parts[a]))
                for (group const& j : by_node(parts[b])) {
                    if (i.node == j.node || i.node == no_node || j.node == no_node)
                        continue;
                    auto const count = static_cast<std::ptrdiff_t>(std::min(i.cores.size(), j.cores.size()));
                    auto const with_exchange = [&](core_list const& part, group const& removed, group const& added) {
                        core_list candidate;
                        std::set_difference(part.begin(), part.end(), removed.cores.begin(),
                                            removed.cores.begin() + count, std::back_inserter(candidate));
                        candidate.insert(candidate.end(), added.cores.begin(), added.cores.begin() + count);
                        std::sort(candidate.begin(), candidate.end());
                        return candidate;
                    };
                    std::vector<core_list> candidates = {with_exchange(parts[a], i, j), with_exchange(parts[b], j, i)};
                    if (rate(candidates, {gpu_distances[a], gpu_distances[b]}) < old_rating) {
                        parts[a] = std::move(candidates[0]);
                        parts[b] = std::move(candidates[1]);
                        return true;
                    }
                }
            return false;
        };
        bool changed = false;
        for (std::size_t a = 0; a < parts.size(); ++a)
            for (std::size_t b = 0; b < a; ++b)
                while (try_exchange(a, b))
                    changed = true;
        return changed;
    }

    // Assigns each rank to a node that has at least min_cores cores for each of its ranks. Because memory bounds a
    // step, the numbers of ranks of nodes differ by at most one, as far as their sizes allow. Ties are broken by the
    // least sum of distances to GPUs, then by more ranks for larger nodes, then by the order. Returns false if nodes
    // are too small.
    bool spread(std::vector<group>& groups, std::size_t min_cores, distances const& gpu_distances) const
    {
        std::size_t const ranks = gpu_distances.size();
        std::size_t most = 0;  // maximum of ranks of one node
        std::size_t seats = 0; // ranks that all nodes can hold together
        while (seats < ranks) {
            std::size_t const old_rating = std::exchange(seats, 0);
            ++most;
            for (group const& g : groups)
                seats += std::min(g.cores.size() / min_cores, most);
            if (seats == old_rating)
                return false;
        }
        struct seat {
            std::size_t node;
            std::int64_t cost; // without distances; above any sum of distances for the last rank of a full node
        };
        std::int64_t const distance_unit = 64; // larger than any sum of tie-breaking costs
        auto const step = static_cast<std::int64_t>(ranks * groups.size() + 1);
        std::int64_t const uneven = (2 * distance_unit * static_cast<std::int64_t>(ranks) + 1) * step;
        std::vector<seat> all;
        for (std::size_t n = 0; n < groups.size(); ++n) {
            auto const larger = std::count_if(groups.begin(), groups.end(),
                                              [&](group const& g) { return g.cores.size() > groups[n].cores.size(); });
            for (std::size_t k = 1; k <= std::min(groups[n].cores.size() / min_cores, most); ++k)
                all.push_back({n, k < most ? 0 : uneven + larger});
        }
        std::vector<std::vector<std::int64_t>> cost;
        for (std::vector<unsigned char> const& rank_distances : gpu_distances) {
            std::vector<std::int64_t> node_cost;
            for (group const& g : groups)
                node_cost.push_back(mean_distance(g.cores, g.cores.size(), rank_distances, distance_unit) * step);
            cost.emplace_back();
            for (seat const& s : all)
                cost.back().push_back(node_cost[s.node] + s.cost);
        }
        for (group& g : groups)
            g.ranks.clear();
        std::vector<std::size_t> const assignment = least_assignment(cost);
        for (unsigned r = 0; r < ranks; ++r)
            groups[all[assignment[r]].node].ranks.push_back(r);
        return true;
    }

    // Exchanges two nodes of the same size between all ranks with cores there if that makes the parts better. Returns
    // whether it did.
    bool swap_nodes(std::vector<group> const& groups, std::vector<core_list>& parts,
                    distances const& gpu_distances) const
    {
        rating const old_rating = rate(parts, gpu_distances);
        for (group const& i : groups)
            for (group const& j : groups) {
                if (&j >= &i || i.cores.size() != j.cores.size() || i.node == no_node || j.node == no_node)
                    continue;
                core_list counterpart(machine_.cores.size());
                for (unsigned c = 0; c < counterpart.size(); ++c)
                    counterpart[c] = c;
                for (std::size_t k = 0; k < i.cores.size(); ++k)
                    std::swap(counterpart[i.cores[k]], counterpart[j.cores[k]]);
                std::vector<core_list> candidates = parts;
                for (core_list& part : candidates) {
                    for (unsigned& c : part)
                        c = counterpart[c];
                    std::sort(part.begin(), part.end());
                }
                if (rate(candidates, gpu_distances) < old_rating) {
                    parts = std::move(candidates);
                    return true;
                }
            }
        return false;
    }

    // Divides the cores of a node between its ranks. Numbers of cores of each speed differ by at most one, and each
    // rank's cores are adjacent.
    void divide_node(group const& g, std::vector<core_list>& parts) const
    {
        core_list cores = g.cores;
        detail::sort_stably(
            cores, [&](unsigned a, unsigned b) { return machine_.cores[a].efficiency > machine_.cores[b].efficiency; });
        for (std::size_t begin = 0; begin < cores.size() && !g.ranks.empty();) {
            std::size_t end = begin;
            while (end < cores.size() &&
                   machine_.cores[cores[end]].efficiency == machine_.cores[cores[begin]].efficiency)
                ++end;
            std::vector<std::size_t> counts(g.ranks.size(), (end - begin) / g.ranks.size());
            std::vector<std::size_t> smallest_first(g.ranks.size());
            for (std::size_t k = 0; k < smallest_first.size(); ++k)
                smallest_first[k] = k;
            detail::sort_stably(smallest_first, [&](std::size_t a, std::size_t b) {
                return parts[g.ranks[a]].size() < parts[g.ranks[b]].size();
            });
            for (std::size_t k = 0; k < (end - begin) % g.ranks.size(); ++k)
                ++counts[smallest_first[k]];
            for (std::size_t k = 0; k < counts.size(); ++k)
                for (; counts[k] > 0; --counts[k])
                    parts[g.ranks[k]].push_back(cores[begin++]);
        }
        for (unsigned const r : g.ranks)
            std::sort(parts[r].begin(), parts[r].end());
    }

    // Partitions all cores in the order of the nodes. Sizes differ by at most one core, unless a node ends at most
    // `slack` cores away: then the part ends at the nearest end of a node, preferably also the end of a package.
    std::vector<core_list> partition_in_order(std::vector<group> const& groups, unsigned ranks, std::size_t slack) const
    {
        core_list order;
        std::vector<std::size_t> ends;
        for (group const& g : groups) {
            order.insert(order.end(), g.cores.begin(), g.cores.end());
            ends.push_back(order.size());
        }
        auto const ends_package = [&](std::size_t e) {
            return e == order.size() || machine_.cores[order[e - 1]].package != machine_.cores[order[e]].package;
        };
        std::vector<core_list> parts(ranks);
        std::size_t begin = 0;
        for (unsigned r = 0; r < ranks; ++r) {
            std::size_t const even = order.size() * (r + 1); // times the number of ranks
            auto const deviation = [&](std::size_t e) {
                return e * ranks > even ? e * ranks - even : even - e * ranks;
            };
            std::size_t end = even / ranks;
            bool ends_at_node = false;
            for (std::size_t const e : ends)
                if (r + 1 < ranks && e > begin && deviation(e) <= slack * ranks &&
                    (!ends_at_node || deviation(e) < deviation(end) ||
                     (deviation(e) == deviation(end) && ends_package(e) && !ends_package(end)))) {
                    end = e;
                    ends_at_node = true;
                }
            parts[r].assign(order.begin() + static_cast<std::ptrdiff_t>(begin),
                            order.begin() + static_cast<std::ptrdiff_t>(end));
            std::sort(parts[r].begin(), parts[r].end());
            begin = end;
        }
        return parts;
    }

    // Returns parts whose sizes differ by at most one core, or by `slack` if that avoids dividing a node. Each rank
    // first gets a base node: one that has enough cores for its optimizer, or, if there are too few of these, any node
    // for it alone. The sum of distances to the GPUs is minimal. Ranks that lack cores then get cores of the remaining
    // nodes in the same way. Empty if there are fewer base nodes than ranks.
    std::vector<core_list> divide_around_bases(std::vector<group> const& groups, distances const& gpu_distances,
                                               std::size_t slack) const
    {
        std::size_t const ranks = gpu_distances.size();
        std::size_t total = 0;
        for (group const& g : groups)
            total += g.cores.size();
        std::size_t const optimizer_cores = optimizer_share((total + ranks - 1) / ranks);
        std::size_t bases = 0;
        for (group const& g : groups)
            bases += g.cores.size() / optimizer_cores;
        bool const optimizers_fit = bases >= ranks;
        if (!optimizers_fit && groups.size() < ranks)
            return {};
        std::vector<core_list> remaining;    // of each node
        std::vector<std::int64_t> closeness; // to all GPUs: ranks that have a choice leave such nodes to the others
        for (group const& g : groups) {
            remaining.push_back(g.cores);
            closeness.push_back(0);
            for (std::vector<unsigned char> const& rank_distances : gpu_distances)
                closeness.back() += 2 - rank_distances[g.cores.front()];
        }
        auto const scale = static_cast<std::int64_t>(2 * ranks * ranks + 1); // above the sum of these
        std::vector<core_list> parts(ranks);
        std::vector<std::size_t> sizes;
        for (std::size_t r = 0; r < ranks; ++r)
            sizes.push_back(total * (r + 1) / ranks - total * r / ranks);
        for (bool first_round = true; total > 0; first_round = false) {
            std::vector<std::size_t> short_ranks; // ranks
            std::size_t most = 0;
            for (std::size_t r = 0; r < ranks; ++r)
                if (parts[r].size() < sizes[r]) {
                    short_ranks.push_back(r);
                    most = std::max(most, sizes[r] - parts[r].size());
                }
            std::vector<std::size_t>
                offers; // nodes, each as often as ranks may share it, but no more often than necessary
            for (std::size_t const rounding : {std::size_t{0}, most - 1}) {
                if (offers.size() >= short_ranks.size())
                    break;
                offers.clear();
                for (std::size_t n = 0; n < remaining.size(); ++n) {
                    std::size_t const shares =
                        first_round
                            ? (optimizers_fit ? remaining[n].size() / optimizer_cores : 1)
                            : std::max<std::size_t>((remaining[n].size() + rounding) / most, !remaining[n].empty());
                    offers.insert(offers.end(), std::min(shares, short_ranks.size()), n);
                }
            }
            std::vector<std::vector<std::int64_t>> cost;
            for (std::size_t const r : short_ranks) {
                std::size_t const size = parts[r].size();
                cost.emplace_back();
                for (std::size_t const n : offers)
                    cost.back().push_back(
                        scale * distance(remaining[n],
                                         size < optimizer_cores ? optimizer_cores - size : sizes[r] - size,
                                         gpu_distances[r]) +
                        closeness[n]);
                cost.back().resize(std::max(offers.size(), short_ranks.size())); // columns for ranks that get no node
            }
            std::vector<std::size_t> const assignment = least_assignment(cost);
            std::vector<std::size_t> sharers_of_node(remaining.size());
            for (std::size_t const t : assignment)
                if (t < offers.size())
                    ++sharers_of_node[offers[t]];
            for (std::size_t k = 0; k < short_ranks.size(); ++k) {
                if (assignment[k] >= offers.size())
                    continue;
                core_list& node = remaining[offers[assignment[k]]];
                std::size_t& sharers = sharers_of_node[offers[assignment[k]]];
                core_list& part = parts[short_ranks[k]];
                std::size_t count =
                    std::min(sizes[short_ranks[k]] - part.size(), (node.size() + sharers - 1) / sharers);
                if (std::size_t const rest = node.size() - count; sharers == 1 && rest <= slack) {
                    slack -= rest; // limits the sum for all ranks, so that no rank gets much less
                    count += rest;
                }
                --sharers;
                part.insert(part.end(), node.begin(), node.begin() + static_cast<std::ptrdiff_t>(count));
                node.erase(node.begin(), node.begin() + static_cast<std::ptrdiff_t>(count));
                total -= count;
            }
        }
        for (core_list& part : parts)
            std::sort(part.begin(), part.end());
        return parts;
    }
};

} // namespace detail

ADAMANT_END_NAMESPACE
