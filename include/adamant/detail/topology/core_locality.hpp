// SPDX-License-Identifier: Apache-2.0
// Where cores are: whose memory is theirs, and how far they are from a rank's GPU. The inside of selection.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/topology/least_assignment.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Indexes of cores in machine::cores, ascending except where said.
using core_list = std::vector<unsigned>;

class core_locality {
protected:
    core_locality(machine const& machine, core_request const& request) : machine_(machine), request_(request) {}

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
        std::vector<unsigned> ranks; // counted from the first of the pool
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

    // The CPU quota of each rank; 0 where it does not limit the machine's allowed PUs.
    double quota_of_rank() const
    {
        double const all = machine_.quota.cpus;
        return all < static_cast<double>(machine_.allowed.size()) ? all / request_.ranks : 0;
    }

    // How many of n cores the optimizer gets: the requested number, limited by n; or a share, also limited by the
    // quota.
    std::size_t optimizer_share(std::size_t n) const
    {
        std::size_t const wanted = requested_share(n);
        if (request_.cpuadam_cores || list_is_the_optimizers())
            return wanted;
        std::size_t threads_of_core = 1;
        if (request_.smt == smt_policy::all)
            for (topology::core const& c : machine_.cores)
                threads_of_core = std::max(threads_of_core, c.pus.size());
        return std::max<std::size_t>(threads_within(quota_of_rank(), 1, wanted * threads_of_core) / threads_of_core, 1);
    }
    std::size_t requested_share(std::size_t n) const
    {
        auto const nearest = [n](double share) {
            return static_cast<std::size_t>(std::floor(share * static_cast<double>(n) + 0.5));
        };
        if (n == 1 || list_is_the_optimizers())
            return n;
        if (request_.cpuadam_cores)
            return std::min<std::size_t>(*request_.cpuadam_cores, n);
        if (request_.pt_reserved_cores)
            return n - std::min<std::size_t>(*request_.pt_reserved_cores, n - 1);
        if (request_.pt_reserved_cores_perc)
            return n - std::clamp<std::size_t>(nearest(*request_.pt_reserved_cores_perc), 1, n - 1);
        return std::clamp<std::size_t>(nearest(request_.cpuadam_cores_perc.value_or(default_cpuadam_cores_perc)), 1,
                                       n - 1);
    }

    // The GPU of a rank, where it has one and the machine knows where that is.
    topology::gpu const* gpu_of(unsigned rank) const
    {
        if (request_.gpus.empty() || request_.gpus[rank].empty())
            return nullptr;
        std::string wanted = request_.gpus[rank];
        std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        std::string known;
        for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
            topology::gpu const& g = machine_.gpus[i];
            if (wanted == std::to_string(i) || wanted == g.pci || "0000:" + wanted == g.pci || wanted == "0000" + g.pci)
                return &g;
            known += text_of({known.empty() ? "" : ", ", i, " (", g.pci, ")"});
        }
        throw_unavailable({"rank ", rank, " is to drive GPU ", request_.gpus[rank], ", but ", machine_.source, " has ",
                           known.empty() ? "no GPU" : known});
    }
    bool near(unsigned c, topology::gpu const* device) const
    {
        return device != nullptr && machine_.cores[c].pus.intersects(device->pus);
    }
    // How many of some cores are near.
    std::size_t near(core_list const& cores, topology::gpu const* device) const
    {
        return static_cast<std::size_t>(
            std::count_if(cores.begin(), cores.end(), [&](unsigned c) { return near(c, device); }));
    }

    // How far each core of the machine is from the GPU of each rank: 0 near it, 1 in a package that has such cores, 2
    // elsewhere. A rank without a GPU, or with one that is as near to all cores of the pool, is far from none.
    using distances = std::vector<std::vector<unsigned char>>;
    distances distances_of(core_list const& pool, unsigned first, unsigned ranks) const
    {
        distances all(ranks, std::vector<unsigned char>(machine_.cores.size(), 0));
        for (unsigned r = 0; r < ranks; ++r) {
            topology::gpu const* const device = gpu_of(first + r);
            if (device == nullptr || near(pool, device) == pool.size())
                continue;
            for (unsigned const c : pool) {
                unsigned const p = machine_.cores[c].package;
                bool const same = p < machine_.packages.size() && machine_.packages[p].pus.intersects(device->pus);
                all[r][c] = near(c, device) ? 0 : same ? 1 : 2;
            }
        }
        return all;
    }
    // The sum over the nearest `count` of some cores; those that there are too few count as farther than any.
    std::int64_t distance(core_list const& cores, std::size_t count, std::vector<unsigned char> const& far) const
    {
        std::int64_t sum = 0;
        for (int d = 0; d <= 2; ++d) {
            auto const there = static_cast<std::size_t>(
                std::count_if(cores.begin(), cores.end(), [&](unsigned c) { return far[c] == d; }));
            sum += d * static_cast<std::int64_t>(std::min(there, count));
            count -= std::min(there, count);
        }
        return sum + 3 * static_cast<std::int64_t>(count);
    }

    // The mean of the distances of the nearest `count` of some cores, in units of 1 / unit.
    std::int64_t mean_distance(core_list const& cores, std::size_t count, std::vector<unsigned char> const& far,
                               std::int64_t unit) const
    {
        return distance(cores, count, far) * unit / static_cast<std::int64_t>(count);
    }

    // The order in which an optimizer of `wanted` cores prefers nodes: with memory, large enough, near, large.
    std::weak_ordering preference(group const& a, group const& b, std::size_t wanted,
                                  std::vector<unsigned char> const& far) const
    {
        if (auto const order = (a.node == no_node) <=> (b.node == no_node); order != 0)
            return order;
        bool const a_fits = a.cores.size() >= wanted;
        bool const b_fits = b.cores.size() >= wanted;
        if (a_fits != b_fits)
            return b_fits <=> a_fits;
        if (a_fits)
            return distance(a.cores, wanted, far) <=> distance(b.cores, wanted, far);
        std::int64_t const a_far = distance(a.cores, a.cores.size(), far) * std::ssize(b.cores); // on the average
        std::int64_t const b_far = distance(b.cores, b.cores.size(), far) * std::ssize(a.cores);
        return a_far != b_far ? a_far <=> b_far : b.cores.size() <=> a.cores.size();
    }
    // The nodes of a part, in the order of preference, that its optimizer uses: the fewest that have `wanted` cores, of
    // these the nearest. Cores without local memory are used only where the others are too few. Exact where all cores
    // of a node are equally far; else a node counts by its mean distance.
    std::vector<group> optimizer_nodes(std::vector<group> groups, std::size_t wanted,
                                       std::vector<unsigned char> const& far) const
    {
        auto const room = [](auto begin, auto end) {
            return std::accumulate(begin, end, std::size_t{0},
                                   [](std::size_t sum, group const& g) { return sum + g.cores.size(); });
        };
        auto const no_memory =
            std::find_if(groups.begin(), groups.end(), [](group const& g) { return g.node == no_node; });
        if (room(groups.begin(), no_memory) < wanted)
            return groups;
        groups.erase(no_memory, groups.end());
        if (groups.front().cores.size() >= wanted)
            return {groups.front()};
        // No node is large enough, so nodes of one distance follow each other by size: the first of them are the best.
        std::vector<std::size_t> begins = {0};
        for (int d = 0; d < 2; ++d) {
            auto const end = std::find_if(groups.begin(), groups.end(), [&](group const& g) {
                return distance(g.cores, g.cores.size(), far) > d * std::ssize(g.cores);
            });
            begins.push_back(static_cast<std::size_t>(end - groups.begin()));
        }
        begins.push_back(groups.size());
        std::vector<group> best;
        std::int64_t least = 0;
        for (std::size_t nodes = 2; best.empty(); ++nodes)
            for (std::size_t near = std::min(nodes, begins[1]) + 1; near-- > 0;)
                for (std::size_t same = std::min(nodes - near, begins[2] - begins[1]) + 1; same-- > 0;) {
                    std::size_t const rest = nodes - near - same;
                    if (rest > begins[3] - begins[2])
                        continue;
                    std::vector<group> chosen;
                    core_list cores;
                    for (auto const& [begin, count] :
                         {std::pair(begins[0], near), std::pair(begins[1], same), std::pair(begins[2], rest)})
                        for (std::size_t k = begin; k < begin + count; ++k) {
                            chosen.push_back(groups[k]);
                            cores.insert(cores.end(), groups[k].cores.begin(), groups[k].cores.end());
                        }
                    if (cores.size() < wanted)
                        continue;
                    if (std::int64_t const sum = distance(cores, wanted, far); best.empty() || sum < least) {
                        best = std::move(chosen);
                        least = sum;
                    }
                }
        return best;
    }

    // How good parts are: the fewer NUMA nodes the optimizers use, the better; then the nearer they are to their GPUs.
    struct rating {
        std::size_t nodes = 0;
        std::int64_t distance = 0; // the sum of the means, in units of 1 / unit_
        friend auto operator<=>(rating const&, rating const&) = default;
    };
    rating rated(core_list const& part, std::vector<unsigned char> const& far) const
    {
        std::size_t const wanted = optimizer_share(part.size());
        std::vector<group> groups = by_node(part);
        detail::sort_stably(groups, [&](group const& a, group const& b) { return preference(a, b, wanted, far) < 0; });
        groups = optimizer_nodes(std::move(groups), wanted, far);
        core_list cores;
        for (group const& g : groups)
            cores.insert(cores.end(), g.cores.begin(), g.cores.end());
        return {groups.size(), mean_distance(cores, wanted, far, unit_)};
    }
    rating rated(std::vector<core_list> const& parts, distances const& far) const
    {
        rating sum;
        for (std::size_t r = 0; r < parts.size(); ++r) {
            rating const one = rated(parts[r], far[r]);
            sum.nodes += one.nodes;
            sum.distance += one.distance;
        }
        return sum;
    }
    // Makes the mean distances of parts of these sizes whole numbers of units, so that sums of them are exact.
    void set_unit(std::vector<std::vector<core_list>> const& all)
    {
        unit_ = 1;
        for (std::vector<core_list> const& parts : all)
            for (core_list const& part : parts) {
                unit_ = std::lcm(unit_, static_cast<std::int64_t>(optimizer_share(part.size())));
                if (unit_ > std::int64_t{1} << 32) { // never with parts of similar sizes
                    unit_ = std::int64_t{1} << 20;
                    return;
                }
            }
    }

    // Gives the parts to the ranks so that the mean distances between the optimizers' cores and their GPUs add up to
    // the least. Where the order of the parts is as good, it stays.
    std::vector<core_list> nearest(std::vector<core_list> parts, distances const& far) const
    {
        std::vector<std::vector<std::int64_t>> cost;
        for (std::vector<unsigned char> const& from : far) {
            cost.emplace_back();
            for (core_list const& part : parts)
                cost.back().push_back(rated(part, from).distance);
        }
        if (parts.empty())
            return parts;
        std::vector<core_list> given;
        for (std::size_t const p : least_assignment(cost))
            given.push_back(std::move(parts[p]));
        return given;
    }

    machine const& machine_;
    core_request const& request_;
    std::int64_t unit_ = 1; // of distances in ratings
};

} // namespace detail

ADAMANT_END_NAMESPACE
