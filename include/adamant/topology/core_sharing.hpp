// SPDX-License-Identifier: Apache-2.0
// How the cores of a pool are shared out between ranks. The inside of selection.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/core/stable_sort.hpp>
#include <adamant/topology/core_request.hpp>
#include <adamant/topology/machine.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Indexes of cores in machine::cores, ascending except where said.
using core_list = std::vector<unsigned>;

class core_sharing {
protected:
    core_sharing(machine const& machine, core_request const& request) : machine_(machine), request_(request) {}

    int sizes() const
    {
        return int{request_.cpuadam_cores_perc.has_value()} + int{request_.cpuadam_cores.has_value()} +
               int{request_.pt_reserved_cores.has_value()} + int{request_.pt_reserved_cores_perc.has_value()};
    }
    bool list_is_the_optimizers() const { return !request_.list.empty() && sizes() == 0; }

    // The cores of a pool that have the same memory, in the order of the machine.
    struct group {
        unsigned node;
        core_list cores;
        std::vector<unsigned> ranks;
    };
    std::vector<group> by_node(core_list const& pool) const
    {
        std::vector<group> groups;
        for (unsigned const c : pool) {
            auto found = std::find_if(groups.begin(), groups.end(),
                                      [&](group const& g) { return g.node == machine_.cores[c].node; });
            if (found == groups.end())
                found = groups.insert(groups.end(), {machine_.cores[c].node, {}, {}});
            found->cores.push_back(c);
        }
        return groups;
    }

    // The GPU of a rank, where it has one and the machine knows where that is.
    gpu const* gpu_of(unsigned rank) const
    {
        if (request_.gpus.empty() || request_.gpus[rank].empty())
            return nullptr;
        std::string wanted = request_.gpus[rank];
        std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        std::string known;
        for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
            gpu const& g = machine_.gpus[i];
            if (wanted == std::to_string(i) || wanted == g.pci || "0000:" + wanted == g.pci || wanted == "0000" + g.pci)
                return &g;
            known += (known.empty() ? "" : ", ") + std::to_string(i) + " (" + g.pci + ")";
        }
        throw unavailable("adamant: rank " + std::to_string(rank) + " is to drive GPU " + request_.gpus[rank] +
                          ", but " + machine_.source + " has " + (known.empty() ? "no GPU" : known));
    }
    bool near(unsigned c, gpu const* device) const
    {
        return device != nullptr && machine_.cores[c].pus.intersects(device->pus);
    }
    // How many of some cores are near.
    std::ptrdiff_t near(core_list const& cores, gpu const* device) const
    {
        return std::count_if(cores.begin(), cores.end(), [&](unsigned c) { return near(c, device); });
    }

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

    // Shares the cores of a pool out. Each rank stays inside one NUMA node if they all can. Nodes without a rank are
    // then left idle, but not those of a list.
    std::vector<core_list> assign(core_list const& pool, unsigned first, unsigned ranks) const
    {
        std::vector<core_list> parts(ranks);
        std::vector<group> groups = by_node(pool);
        if (ranks >= groups.size())
            for (std::size_t const need : needs(pool.size(), ranks)) {
                if (!place(groups, std::max<std::size_t>(need, 1), first, ranks))
                    continue;
                if (list_is_the_optimizers() &&
                    std::any_of(groups.begin(), groups.end(), [](group const& g) { return g.ranks.empty(); }))
                    break;
                for (group const& g : groups)
                    deal(g, first, parts);
                return parts;
            }
        return cut(groups, first, ranks);
    }

    // Gives each rank a node: near its GPU if it has one, else spread evenly, ranks of one node next to each other.
    // False where some node would have fewer than `need` cores for a rank.
    bool place(std::vector<group>& groups, std::size_t need, unsigned first, unsigned ranks) const
    {
        auto const has_room = [&](group const& g) { return g.cores.size() / need > g.ranks.size(); };
        for (group& g : groups)
            g.ranks.clear();
        std::vector<unsigned> anywhere;
        for (unsigned r = first; r < first + ranks; ++r) {
            gpu const* const device = gpu_of(r);
            group* best = nullptr;
            for (group& g : groups)
                if (near(g.cores.front(), device) && has_room(g) &&
                    (best == nullptr || g.ranks.size() < best->ranks.size()))
                    best = &g;
            if (best != nullptr && !std::all_of(groups.begin(), groups.end(),
                                                [&](group const& g) { return near(g.cores.front(), device); }))
                best->ranks.push_back(r);
            else
                anywhere.push_back(r);
        }
        std::vector<std::size_t> more(groups.size());
        for (std::size_t left = anywhere.size(); left > 0; --left) {
            std::size_t best = groups.size();
            auto const load = [&](std::size_t g) { return groups[g].ranks.size() + more[g]; };
            for (std::size_t g = 0; g < groups.size(); ++g)
                if (groups[g].cores.size() / need > load(g) &&
                    (best == groups.size() || load(g) < load(best) ||
                     (load(g) == load(best) && groups[g].cores.size() > groups[best].cores.size())))
                    best = g;
            if (best == groups.size())
                return false;
            ++more[best];
        }
        auto next = anywhere.begin();
        for (std::size_t g = 0; g < groups.size(); ++g) {
            groups[g].ranks.insert(groups[g].ranks.end(), next, next + static_cast<std::ptrdiff_t>(more[g]));
            next += static_cast<std::ptrdiff_t>(more[g]);
            std::sort(groups[g].ranks.begin(), groups[g].ranks.end());
        }
        return true;
    }

    // Deals the cores of a node to its ranks: of each speed the same number, give or take one, next to each other.
    void deal(group const& g, unsigned first, std::vector<core_list>& parts) const
    {
        core_list left = g.cores;
        detail::stable_sort(left.begin(), left.end(), [&](unsigned a, unsigned b) {
            return machine_.cores[a].efficiency > machine_.cores[b].efficiency;
        });
        for (std::size_t begin = 0; begin < left.size() && !g.ranks.empty();) {
            std::size_t end = begin;
            while (end < left.size() && machine_.cores[left[end]].efficiency == machine_.cores[left[begin]].efficiency)
                ++end;
            std::vector<std::size_t> takes(g.ranks.size(), (end - begin) / g.ranks.size());
            std::vector<std::size_t> hungry(g.ranks.size());
            for (std::size_t k = 0; k < hungry.size(); ++k)
                hungry[k] = k;
            detail::stable_sort(hungry.begin(), hungry.end(), [&](std::size_t a, std::size_t b) {
                return parts[g.ranks[a] - first].size() < parts[g.ranks[b] - first].size();
            });
            for (std::size_t k = 0; k < (end - begin) % g.ranks.size(); ++k)
                ++takes[hungry[k]];
            for (std::size_t k = 0; k < takes.size(); ++k)
                for (; takes[k] > 0; --takes[k])
                    parts[g.ranks[k] - first].push_back(left[begin++]);
        }
        for (unsigned const r : g.ranks)
            std::sort(parts[r - first].begin(), parts[r - first].end());
    }

    // Cuts all cores in their order, which is that of the nodes, into parts of one size, give or take a core, or at the
    // end of a node where that is close. The parts go to the ranks, to each the one with the most cores near its GPU.
    std::vector<core_list> cut(std::vector<group> const& groups, unsigned first, unsigned ranks) const
    {
        core_list order;
        std::vector<std::size_t> ends;
        for (group const& g : groups) {
            order.insert(order.end(), g.cores.begin(), g.cores.end());
            ends.push_back(order.size());
        }
        std::size_t const size = order.size() / ranks;
        std::size_t const slack = std::min(size / 16, (size - std::min(size, needs(order.size(), ranks).front())) / 2);
        std::vector<core_list> cuts(ranks);
        std::size_t begin = 0;
        for (unsigned r = 0; r < ranks; ++r) {
            std::size_t end = order.size() * (r + 1) / ranks;
            for (std::size_t const e : ends)
                if (r + 1 < ranks && e > begin && (e > end ? e - end : end - e) <= slack) {
                    end = e;
                    break;
                }
            cuts[r].assign(order.begin() + static_cast<std::ptrdiff_t>(begin),
                           order.begin() + static_cast<std::ptrdiff_t>(end));
            std::sort(cuts[r].begin(), cuts[r].end());
            begin = end;
        }
        auto const closeness = [&](unsigned r, core_list const& part) { return near(part, gpu_of(first + r)); };
        // Those to whom it makes a difference choose first.
        std::vector<std::pair<std::ptrdiff_t, unsigned>> turns;
        for (unsigned r = 0; r < ranks; ++r) {
            auto const [least, most] =
                std::minmax_element(cuts.begin(), cuts.end(), [&](core_list const& a, core_list const& b) {
                    return closeness(r, a) < closeness(r, b);
                });
            turns.emplace_back(closeness(r, *least) - closeness(r, *most), r);
        }
        std::sort(turns.begin(), turns.end());
        std::vector<core_list> parts(ranks);
        for (auto const& turn : turns) {
            unsigned const r = turn.second;
            auto const best = std::max_element(cuts.begin(), cuts.end(), [&](core_list const& a, core_list const& b) {
                return closeness(r, a) < closeness(r, b); // the first of several
            });
            parts[r] = std::move(*best);
            cuts.erase(best);
        }
        return parts;
    }

    machine const& machine_;
    core_request const& request_;
};

} // namespace detail

ADAMANT_END_NAMESPACE
