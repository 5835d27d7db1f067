// SPDX-License-Identifier: Apache-2.0
// How the cores of a pool are shared out between ranks. The inside of selection.hpp.
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

    // The fewest cores that a rank should be given of a pool, and what may do if need be.
    std::vector<std::size_t> needs(std::size_t pool, unsigned ranks) const
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

    // Shares the cores of a pool out. Each rank stays inside one NUMA node if they all can; no node is idle then that
    // has enough cores for a rank. Else all cores are given, in the order of the machine, or around homes where
    // optimizers then have fewer nodes, or are nearer to their GPUs.
    std::vector<core_list> assign(core_list const& pool, unsigned first, unsigned ranks)
    {
        std::vector<group> groups = by_node(pool);
        distances const far = distances_of(pool, first, ranks);
        if (ranks >= groups.size())
            for (std::size_t const need : needs(pool.size(), ranks)) {
                if (!spread(groups, std::max<std::size_t>(need, 1), far))
                    continue;
                if (list_is_the_optimizers() &&
                    std::any_of(groups.begin(), groups.end(), [](group const& g) { return g.ranks.empty(); }))
                    break;
                std::vector<core_list> parts(ranks);
                for (group const& g : groups)
                    deal(g, parts);
                set_unit({parts});
                return nearest(std::move(parts), far);
            }
        std::size_t const size = pool.size() / ranks;
        std::size_t const slack = std::min(size / 16, (size - std::min(size, needs(pool.size(), ranks).front())) / 2);
        std::vector<core_list> in_order = cut(groups, ranks, slack);
        std::vector<core_list> homely = around_homes(groups, far, slack);
        std::vector<core_list> even = around_homes(groups, far, 0);
        set_unit({in_order, homely, even});
        in_order = nearest(std::move(in_order), far);
        if (ranks == 1)
            return in_order;
        homely = nearest(std::move(homely), far);
        even = nearest(std::move(even), far);
        if (rated(even, far).nodes < rated(homely, far).nodes)
            homely = std::move(even);
        std::vector<core_list> parts =
            !homely.empty() && rated(homely, far) < rated(in_order, far) ? std::move(homely) : std::move(in_order);
        for (rating before = rated(parts, far);;) {
            if (!search(groups, parts, far)) {
                do
                    parts = nearest(std::move(parts), far);
                while (trade(parts, far) || swap_nodes(groups, parts, far));
                return parts;
            }
            parts = nearest(std::move(parts), far); // of other sizes, perhaps
            rating const now = rated(parts, far);
            if (!(now < before))
                return parts;
            before = now;
        }
    }

    // Replaces parts by better ones of the same sizes, if it finds any. False where the result may not be the best one:
    // the search took too long, or cores of one node differ.
    bool search(std::vector<group> const& groups, std::vector<core_list>& parts, distances const& far) const
    {
        node_search::counts room, wanted;
        std::vector<node_search::costs> cost(parts.size());
        for (group const& g : groups) {
            room.push_back(g.cores.size());
            for (std::size_t r = 0; r < parts.size(); ++r)
                if (g.node == no_node || std::any_of(g.cores.begin(), g.cores.end(),
                                                     [&](unsigned c) { return far[r][c] != far[r][g.cores.front()]; }))
                    return false;
        }
        for (std::size_t r = 0; r < parts.size(); ++r) {
            wanted.push_back(optimizer_share(parts[r].size()));
            for (group const& g : groups)
                cost[r].push_back(mean_distance(g.cores, 1, far[r], unit_ / static_cast<std::int64_t>(wanted[r])));
        }
        rating const before = rated(parts, far);
        node_search nodes(std::move(room), wanted, cost);
        auto const found = nodes.better_than({before.nodes, before.distance});
        if (!found)
            return nodes.complete();
        std::vector<core_list> made(parts.size());
        std::vector<core_list> left;
        auto const give = [&](std::size_t r, std::size_t n, std::size_t count) {
            auto const end = left[n].begin() + static_cast<std::ptrdiff_t>(std::min(count, left[n].size()));
            made[r].insert(made[r].end(), left[n].begin(), end);
            left[n].erase(left[n].begin(), end);
        };
        for (group const& g : groups)
            left.push_back(g.cores);
        for (std::size_t r = 0; r < parts.size(); ++r)
            for (std::size_t n = 0; n < groups.size(); ++n)
                give(r, n, (*found)[r][n]);
        for (bool const own : {true, false}) // the hosts', in the optimizers' nodes where these have room
            for (std::size_t r = 0; r < parts.size(); ++r)
                for (std::size_t n = 0; n < groups.size(); ++n)
                    if (!own || (*found)[r][n] != 0)
                        give(r, n, parts[r].size() - made[r].size());
        for (core_list& part : made)
            std::sort(part.begin(), part.end());
        if (rated(made, far) < before)
            parts = std::move(made);
        return nodes.complete();
    }

    // Has pairs of ranks exchange cores that they have in a node each, where that makes the parts better. False where
    // no such exchange does.
    bool trade(std::vector<core_list>& parts, distances const& far) const
    {
        auto const traded = [&](std::size_t a, std::size_t b) {
            rating const before = rated({parts[a], parts[b]}, {far[a], far[b]});
            for (group const& i : by_node(parts[a]))
                for (group const& j : by_node(parts[b])) {
                    if (i.node == j.node || i.node == no_node || j.node == no_node)
                        continue;
                    auto const count = static_cast<std::ptrdiff_t>(std::min(i.cores.size(), j.cores.size()));
                    auto const other = [&](core_list const& part, group const& gives, group const& gets) {
                        core_list made;
                        std::set_difference(part.begin(), part.end(), gives.cores.begin(), gives.cores.begin() + count,
                                            std::back_inserter(made));
                        made.insert(made.end(), gets.cores.begin(), gets.cores.begin() + count);
                        std::sort(made.begin(), made.end());
                        return made;
                    };
                    std::vector<core_list> made = {other(parts[a], i, j), other(parts[b], j, i)};
                    if (rated(made, {far[a], far[b]}) < before) {
                        parts[a] = std::move(made[0]);
                        parts[b] = std::move(made[1]);
                        return true;
                    }
                }
            return false;
        };
        bool any = false;
        for (std::size_t a = 0; a < parts.size(); ++a)
            for (std::size_t b = 0; b < a; ++b)
                while (traded(a, b))
                    any = true;
        return any;
    }

    // Gives each rank a node that has at least `need` cores for each of its ranks. Nodes have equally many ranks, give
    // or take one, as far as they have room, because a step is bound by memory. Of all such assignments it is the one
    // with the least sum of distances to GPUs; then larger nodes have more ranks; then the order stays. False where
    // there is not room for all.
    bool spread(std::vector<group>& groups, std::size_t need, distances const& far) const
    {
        std::size_t const ranks = far.size();
        std::size_t most = 0;  // ranks of one node
        std::size_t seats = 0; // per node that has room
        while (seats < ranks) {
            std::size_t const before = std::exchange(seats, 0);
            ++most;
            for (group const& g : groups)
                seats += std::min(g.cores.size() / need, most);
            if (seats == before)
                return false;
        }
        struct seat {
            std::size_t node;
            std::int64_t cost; // of its own, above any sum of distances where a node has less without it
        };
        std::int64_t const near = 64; // unit of distances; larger than any sum of tie-breaking ranks by node size
        auto const step = static_cast<std::int64_t>(ranks * groups.size() + 1);
        std::int64_t const uneven = (2 * near * static_cast<std::int64_t>(ranks) + 1) * step;
        std::vector<seat> all;
        for (std::size_t n = 0; n < groups.size(); ++n) {
            auto const larger = std::count_if(groups.begin(), groups.end(),
                                              [&](group const& g) { return g.cores.size() > groups[n].cores.size(); });
            for (std::size_t k = 1; k <= std::min(groups[n].cores.size() / need, most); ++k)
                all.push_back({n, k < most ? 0 : uneven + larger});
        }
        std::vector<std::vector<std::int64_t>> cost;
        for (std::vector<unsigned char> const& from : far) {
            std::vector<std::int64_t> of_node;
            for (group const& g : groups)
                of_node.push_back(mean_distance(g.cores, g.cores.size(), from, near) * step);
            cost.emplace_back();
            for (seat const& s : all)
                cost.back().push_back(of_node[s.node] + s.cost);
        }
        for (group& g : groups)
            g.ranks.clear();
        std::vector<std::size_t> const taken = least_assignment(cost);
        for (unsigned r = 0; r < ranks; ++r)
            groups[all[taken[r]].node].ranks.push_back(r);
        return true;
    }

    // Exchanges two nodes of one size between all ranks that have cores there, where that makes the parts better. False
    // where no such exchange does.
    bool swap_nodes(std::vector<group> const& groups, std::vector<core_list>& parts, distances const& far) const
    {
        rating const before = rated(parts, far);
        for (group const& i : groups)
            for (group const& j : groups) {
                if (&j >= &i || i.cores.size() != j.cores.size() || i.node == no_node || j.node == no_node)
                    continue;
                core_list other(machine_.cores.size());
                for (unsigned c = 0; c < other.size(); ++c)
                    other[c] = c;
                for (std::size_t k = 0; k < i.cores.size(); ++k)
                    std::swap(other[i.cores[k]], other[j.cores[k]]);
                std::vector<core_list> made = parts;
                for (core_list& part : made) {
                    for (unsigned& c : part)
                        c = other[c];
                    std::sort(part.begin(), part.end());
                }
                if (rated(made, far) < before) {
                    parts = std::move(made);
                    return true;
                }
            }
        return false;
    }

    // Deals the cores of a node to its ranks: of each speed the same number, give or take one, next to each other.
    void deal(group const& g, std::vector<core_list>& parts) const
    {
        core_list left = g.cores;
        detail::sort_stably(
            left, [&](unsigned a, unsigned b) { return machine_.cores[a].efficiency > machine_.cores[b].efficiency; });
        for (std::size_t begin = 0; begin < left.size() && !g.ranks.empty();) {
            std::size_t end = begin;
            while (end < left.size() && machine_.cores[left[end]].efficiency == machine_.cores[left[begin]].efficiency)
                ++end;
            std::vector<std::size_t> takes(g.ranks.size(), (end - begin) / g.ranks.size());
            std::vector<std::size_t> hungry(g.ranks.size());
            for (std::size_t k = 0; k < hungry.size(); ++k)
                hungry[k] = k;
            detail::sort_stably(hungry, [&](std::size_t a, std::size_t b) {
                return parts[g.ranks[a]].size() < parts[g.ranks[b]].size();
            });
            for (std::size_t k = 0; k < (end - begin) % g.ranks.size(); ++k)
                ++takes[hungry[k]];
            for (std::size_t k = 0; k < takes.size(); ++k)
                for (; takes[k] > 0; --takes[k])
                    parts[g.ranks[k]].push_back(left[begin++]);
        }
        for (unsigned const r : g.ranks)
            std::sort(parts[r].begin(), parts[r].end());
    }

    // Cuts all cores in their order, which is that of the nodes, into parts of one size, give or take a core, or at the
    // end of a node that is at most `slack` cores off: the nearest one, or of two that are as near one that ends a
    // package.
    std::vector<core_list> cut(std::vector<group> const& groups, unsigned ranks, std::size_t slack) const
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
            auto const off = [&](std::size_t e) { return e * ranks > even ? e * ranks - even : even - e * ranks; };
            std::size_t end = even / ranks;
            bool at_node = false;
            for (std::size_t const e : ends)
                if (r + 1 < ranks && e > begin && off(e) <= slack * ranks &&
                    (!at_node || off(e) < off(end) || (off(e) == off(end) && ends_package(e) && !ends_package(end)))) {
                    end = e;
                    at_node = true;
                }
            parts[r].assign(order.begin() + static_cast<std::ptrdiff_t>(begin),
                            order.begin() + static_cast<std::ptrdiff_t>(end));
            std::sort(parts[r].begin(), parts[r].end());
            begin = end;
        }
        return parts;
    }

    // Parts of one size, give or take a core, or `slack` where that leaves a node whole. Each rank gets a home first: a
    // node that holds its optimizer if there are enough of those, else any node for itself, all so that the distances
    // to the GPUs add up to the least. Then the ranks that lack cores get of the nodes that are left in the same way.
    // Empty where there is no home for each.
    std::vector<core_list> around_homes(std::vector<group> const& groups, distances const& far, std::size_t slack) const
    {
        std::size_t const ranks = far.size();
        std::size_t total = 0;
        for (group const& g : groups)
            total += g.cores.size();
        std::size_t const wanted = optimizer_share((total + ranks - 1) / ranks);
        std::size_t homes = 0;
        for (group const& g : groups)
            homes += g.cores.size() / wanted;
        bool const fit = homes >= ranks;
        if (!fit && groups.size() < ranks)
            return {};
        std::vector<core_list> left;     // of each node
        std::vector<std::int64_t> close; // to all GPUs: who does not care leaves such a node to those who do
        for (group const& g : groups) {
            left.push_back(g.cores);
            close.push_back(0);
            for (std::vector<unsigned char> const& from : far)
                close.back() += 2 - from[g.cores.front()];
        }
        auto const scale = static_cast<std::int64_t>(2 * ranks * ranks + 1); // above the sum of these
        std::vector<core_list> parts(ranks);
        std::vector<std::size_t> sizes;
        for (std::size_t r = 0; r < ranks; ++r)
            sizes.push_back(total * (r + 1) / ranks - total * r / ranks);
        for (bool first_round = true; total > 0; first_round = false) {
            std::vector<std::size_t> lacking; // ranks
            std::size_t most = 0;
            for (std::size_t r = 0; r < ranks; ++r)
                if (parts[r].size() < sizes[r]) {
                    lacking.push_back(r);
                    most = std::max(most, sizes[r] - parts[r].size());
                }
            std::vector<std::size_t> offers; // nodes, each as often as ranks may share it: no more often than need be
            for (std::size_t const up : {std::size_t{0}, most - 1}) {
                if (offers.size() >= lacking.size())
                    break;
                offers.clear();
                for (std::size_t n = 0; n < left.size(); ++n) {
                    std::size_t const shares =
                        first_round ? (fit ? left[n].size() / wanted : 1)
                                    : std::max<std::size_t>((left[n].size() + up) / most, !left[n].empty());
                    offers.insert(offers.end(), std::min(shares, lacking.size()), n);
                }
            }
            std::vector<std::vector<std::int64_t>> cost;
            for (std::size_t const r : lacking) {
                std::size_t const has = parts[r].size();
                cost.emplace_back();
                for (std::size_t const n : offers)
                    cost.back().push_back(
                        scale * distance(left[n], has < wanted ? wanted - has : sizes[r] - has, far[r]) + close[n]);
                cost.back().resize(std::max(offers.size(), lacking.size())); // nothing, where there is not enough
            }
            std::vector<std::size_t> const taken = least_assignment(cost);
            std::vector<std::size_t> takers(left.size());
            for (std::size_t const t : taken)
                if (t < offers.size())
                    ++takers[offers[t]];
            for (std::size_t k = 0; k < lacking.size(); ++k) {
                if (taken[k] >= offers.size())
                    continue;
                core_list& node = left[offers[taken[k]]];
                std::size_t& sharers = takers[offers[taken[k]]];
                core_list& part = parts[lacking[k]];
                std::size_t take = std::min(sizes[lacking[k]] - part.size(), (node.size() + sharers - 1) / sharers);
                if (std::size_t const rest = node.size() - take; sharers == 1 && rest <= slack) {
                    slack -= rest; // spread over all ranks, so that none gets much less
                    take += rest;
                }
                --sharers;
                part.insert(part.end(), node.begin(), node.begin() + static_cast<std::ptrdiff_t>(take));
                node.erase(node.begin(), node.begin() + static_cast<std::ptrdiff_t>(take));
                total -= take;
            }
        }
        for (core_list& part : parts)
            std::sort(part.begin(), part.end());
        return parts;
    }
};

} // namespace detail

ADAMANT_END_NAMESPACE
