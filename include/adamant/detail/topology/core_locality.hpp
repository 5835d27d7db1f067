// SPDX-License-Identifier: Apache-2.0
// Locality of cores for select_cores(): their NUMA nodes, and their distances to a rank's GPU.
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

// Indexes of cores in machine::cores, ascending unless stated otherwise.
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

    // Cores of a pool with the same NUMA node, in the order of the machine.
    struct group {
        unsigned node;
        core_list cores;
        std::vector<unsigned> ranks; // relative to the pool's first rank
    };
    std::vector<group> by_node(core_list const& pool) const
    {
        std::vector<group> groups;
        for (unsigned const c : pool) {
            auto match = std::find_if(groups.begin(), groups.end(),
                                      [&](group const& g) { return g.node == machine_.cores[c].node; });
            if (match == groups.end())
                match = groups.insert(groups.end(), {machine_.cores[c].node, {}, {}});
            match->cores.push_back(c);
        }
        return groups;
    }

    // Returns the CPU quota of each rank, or 0 if it does not limit the machine's allowed PUs.
    double quota_of_rank() const
    {
        double const all = machine_.quota.cpus;
        return all < static_cast<double>(machine_.allowed.size()) ? all / request_.ranks : 0;
    }

    // Returns the optimizer's number of n cores: the requested number, limited by n, or a share, also limited by the
    // quota.
    std::size_t optimizer_share(std::size_t n) const
    {
        std::size_t const requested = requested_share(n);
        if (request_.cpuadam_cores || list_is_the_optimizers())
            return requested;
        std::size_t threads_of_core = 1;
        if (request_.smt == smt_policy::all)
            for (topology::core const& c : machine_.cores)
                threads_of_core = std::max(threads_of_core, c.pus.size());
        return std::max<std::size_t>(threads_within(quota_of_rank(), 1, requested * threads_of_core) / threads_of_core,
                                     1);
    }
    std::size_t requested_share(std::size_t n) const
    {
        auto const to_nearest = [n](double share) {
            return static_cast<std::size_t>(std::floor(share * static_cast<double>(n) + 0.5));
        };
        if (n == 1 || list_is_the_optimizers())
            return n;
        if (request_.cpuadam_cores)
            return std::min<std::size_t>(*request_.cpuadam_cores, n);
        if (request_.pt_reserved_cores)
            return n - std::min<std::size_t>(*request_.pt_reserved_cores, n - 1);
        if (request_.pt_reserved_cores_perc)
            return n - std::clamp<std::size_t>(to_nearest(*request_.pt_reserved_cores_perc), 1, n - 1);
        return std::clamp<std::size_t>(to_nearest(request_.cpuadam_cores_perc.value_or(default_cpuadam_cores_perc)), 1,
                                       n - 1);
    }

    // Returns the GPU of a rank, or null if the request names none.
    topology::gpu const* gpu_of(unsigned rank) const
    {
        if (request_.gpus.empty() || request_.gpus[rank].empty())
            return nullptr;
        std::string address = request_.gpus[rank];
        std::transform(address.begin(), address.end(), address.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        std::string known;
        for (std::size_t i = 0; i < machine_.gpus.size(); ++i) {
            topology::gpu const& g = machine_.gpus[i];
            if (address == std::to_string(i) || address == g.pci || "0000:" + address == g.pci ||
                address == "0000" + g.pci)
                return &g;
            known += text_of({known.empty() ? "" : ", ", i, " (", g.pci, ")"});
        }
        throw_unavailable({"cannot find GPU ", request_.gpus[rank], " of rank ", rank, ": ", machine_.source, " has ",
                           known.empty() ? "no GPU" : known});
    }
    bool is_near(unsigned c, topology::gpu const* device) const
    {
        return device != nullptr && machine_.cores[c].pus.intersects(device->pus);
    }
    std::size_t count_near(core_list const& cores, topology::gpu const* device) const
    {
        return static_cast<std::size_t>(
            std::count_if(cores.begin(), cores.end(), [&](unsigned c) { return is_near(c, device); }));
    }

    // The distance of each core of the machine to the GPU of each rank: 0 near it, 1 in the same package, 2 elsewhere.
    // All distances are 0 for a rank without a GPU, or whose GPU is near all cores of the pool.
    using distances = std::vector<std::vector<unsigned char>>;
    distances distances_of(core_list const& pool, unsigned first, unsigned ranks) const
    {
        distances all(ranks, std::vector<unsigned char>(machine_.cores.size(), 0));
        for (unsigned r = 0; r < ranks; ++r) {
            topology::gpu const* const device = gpu_of(first + r);
            if (device == nullptr || count_near(pool, device) == pool.size())
                continue;
            for (unsigned const c : pool) {
                unsigned const p = machine_.cores[c].package;
                bool const in_package =
                    p < machine_.packages.size() && machine_.packages[p].pus.intersects(device->pus);
                all[r][c] = is_near(c, device) ? 0 : in_package ? 1 : 2;
            }
        }
        return all;
    }
    // Returns the sum of distances of the nearest `count` cores. Each missing core counts as distance 3.
    std::int64_t distance(core_list const& cores, std::size_t count,
                          std::vector<unsigned char> const& gpu_distances) const
    {
        std::int64_t sum = 0;
        for (int d = 0; d <= 2; ++d) {
            auto const matches = static_cast<std::size_t>(
                std::count_if(cores.begin(), cores.end(), [&](unsigned c) { return gpu_distances[c] == d; }));
            sum += d * static_cast<std::int64_t>(std::min(matches, count));
            count -= std::min(matches, count);
        }
        return sum + 3 * static_cast<std::int64_t>(count);
    }

    // Returns the mean distance of the nearest `count` cores in units of 1 / unit.
    std::int64_t mean_distance(core_list const& cores, std::size_t count,
                               std::vector<unsigned char> const& gpu_distances, std::int64_t unit) const
    {
        return distance(cores, count, gpu_distances) * unit / static_cast<std::int64_t>(count);
    }

    // Orders nodes by preference for an optimizer of this many cores: with memory, large enough, near, large.
    std::weak_ordering preference(group const& a, group const& b, std::size_t optimizer_cores,
                                  std::vector<unsigned char> const& gpu_distances) const
    {
        if (auto const order = (a.node == no_node) <=> (b.node == no_node); order != 0)
            return order;
        bool const a_fits = a.cores.size() >= optimizer_cores;
        bool const b_fits = b.cores.size() >= optimizer_cores;
        if (a_fits != b_fits)
            return b_fits <=> a_fits;
        if (a_fits)
            return distance(a.cores, optimizer_cores, gpu_distances) <=>
                   distance(b.cores, optimizer_cores, gpu_distances);
        std::int64_t const a_distance =
            distance(a.cores, a.cores.size(), gpu_distances) * std::ssize(b.cores); // compares the means
        std::int64_t const b_distance = distance(b.cores, b.cores.size(), gpu_distances) * std::ssize(a.cores);
        return a_distance != b_distance ? a_distance <=> b_distance : b.cores.size() <=> a.cores.size();
    }
    // Returns the nodes that a part's optimizer uses: the fewest that have enough cores, and of these the nearest.
    // groups: sorted by preference. Cores without local memory are used only if the others are too few. Exact if all
    // cores of a node have the same distance; otherwise a node counts with its mean distance.
    std::vector<group> optimizer_nodes(std::vector<group> groups, std::size_t optimizer_cores,
                                       std::vector<unsigned char> const& gpu_distances) const
    {
        auto const total_cores = [](auto begin, auto end) {
            return std::accumulate(begin, end, std::size_t{0},
                                   [](std::size_t sum, group const& g) { return sum + g.cores.size(); });
        };
        auto const no_memory =
            std::find_if(groups.begin(), groups.end(), [](group const& g) { return g.node == no_node; });
        if (total_cores(groups.begin(), no_memory) < optimizer_cores)
            return groups;
        groups.erase(no_memory, groups.end());
        if (groups.front().cores.size() >= optimizer_cores)
            return {groups.front()};
        // No node is large enough, so nodes of the same distance are sorted by size: the first of them are the best.
        std::vector<std::size_t> begins = {0};
        for (int d = 0; d < 2; ++d) {
            auto const end = std::find_if(groups.begin(), groups.end(), [&](group const& g) {
                return distance(g.cores, g.cores.size(), gpu_distances) > d * std::ssize(g.cores);
            });
            begins.push_back(static_cast<std::size_t>(end - groups.begin()));
        }
        begins.push_back(groups.size());
        std::vector<group> best;
        std::int64_t least = 0;
        for (std::size_t nodes = 2; best.empty(); ++nodes)
            for (std::size_t near_nodes = std::min(nodes, begins[1]) + 1; near_nodes-- > 0;)
                for (std::size_t package_nodes = std::min(nodes - near_nodes, begins[2] - begins[1]) + 1;
                     package_nodes-- > 0;) {
                    std::size_t const far_nodes = nodes - near_nodes - package_nodes;
                    if (far_nodes > begins[3] - begins[2])
                        continue;
                    std::vector<group> chosen;
                    core_list cores;
                    for (auto const& [begin, count] :
                         {std::pair(begins[0], near_nodes), std::pair(begins[1], package_nodes),
                          std::pair(begins[2], far_nodes)})
                        for (std::size_t k = begin; k < begin + count; ++k) {
                            chosen.push_back(groups[k]);
                            cores.insert(cores.end(), groups[k].cores.begin(), groups[k].cores.end());
                        }
                    if (cores.size() < optimizer_cores)
                        continue;
                    if (std::int64_t const sum = distance(cores, optimizer_cores, gpu_distances);
                        best.empty() || sum < least) {
                        best = std::move(chosen);
                        least = sum;
                    }
                }
        return best;
    }

    // Quality of parts, less is better: the number of NUMA nodes of the optimizers, then their distance to the GPUs.
    struct rating {
        std::size_t nodes = 0;
        std::int64_t distance = 0; // the sum of the means, in units of 1 / unit_
        friend auto operator<=>(rating const&, rating const&) = default;
    };
    rating rate(core_list const& part, std::vector<unsigned char> const& gpu_distances) const
    {
        std::size_t const optimizer_cores = optimizer_share(part.size());
        std::vector<group> groups = by_node(part);
        detail::sort_stably(groups, [&](group const& a, group const& b) {
            return preference(a, b, optimizer_cores, gpu_distances) < 0;
        });
        groups = optimizer_nodes(std::move(groups), optimizer_cores, gpu_distances);
        core_list cores;
        for (group const& g : groups)
            cores.insert(cores.end(), g.cores.begin(), g.cores.end());
        return {groups.size(), mean_distance(cores, optimizer_cores, gpu_distances, unit_)};
    }
    rating rate(std::vector<core_list> const& parts, distances const& gpu_distances) const
    {
        rating sum;
        for (std::size_t r = 0; r < parts.size(); ++r) {
            rating const part_rating = rate(parts[r], gpu_distances[r]);
            sum.nodes += part_rating.nodes;
            sum.distance += part_rating.distance;
        }
        return sum;
    }
    // Sets the unit so that the mean distances of parts of these sizes are integers, and their sums are exact.
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

    // Assigns the parts to ranks with the least sum of mean distances between optimizers' cores and GPUs. Keeps the
    // order of the parts if it is as good.
    std::vector<core_list> assign_nearest(std::vector<core_list> parts, distances const& gpu_distances) const
    {
        std::vector<std::vector<std::int64_t>> cost;
        for (std::vector<unsigned char> const& rank_distances : gpu_distances) {
            cost.emplace_back();
            for (core_list const& part : parts)
                cost.back().push_back(rate(part, rank_distances).distance);
        }
        if (parts.empty())
            return parts;
        std::vector<core_list> result;
        for (std::size_t const p : least_assignment(cost))
            result.push_back(std::move(parts[p]));
        return result;
    }

    machine const& machine_;
    core_request const& request_;
    std::int64_t unit_ = 1; // of distances in ratings
};

} // namespace detail

ADAMANT_END_NAMESPACE
