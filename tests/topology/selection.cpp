// SPDX-License-Identifier: Apache-2.0
// Who gets which cores: what holds of every answer, on real machines, on synthetic and on random ones; answers worked
// out by hand; errors; and what launchers say about ranks.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/cores.hpp>
#include <adamant/detail/topology/hwloc.hpp>
#endif

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

using indexes = std::set<unsigned>;

// A request as one line, for a failure's report.
std::string shown(core_request const& r)
{
    std::string text = std::to_string(r.ranks) + " ranks";
    if (r.cpuadam_cores_perc)
        text += ", perc " + std::to_string(*r.cpuadam_cores_perc);
    if (r.cpuadam_cores)
        text += ", cores " + std::to_string(*r.cpuadam_cores);
    if (r.pt_reserved_cores)
        text += ", reserved " + std::to_string(*r.pt_reserved_cores);
    if (r.pt_reserved_cores_perc)
        text += ", reserved perc " + std::to_string(*r.pt_reserved_cores_perc);
    if (!r.list.empty())
        text += ", list " + to_list(r.list);
    for (pu_set const& mask : r.masks)
        text += ", mask " + to_list(mask);
    for (std::string const& g : r.gpus)
        text += ", gpu \"" + g + '"';
    return text + (r.smt == smt_policy::all ? ", all PUs" : "") + (r.fast == fast_cores::host ? ", fast host" : "");
}
std::string shown(machine const& m)
{
    std::string text = m.source + ": allowed " + to_list(m.allowed) + ", offline " + to_list(m.offline);
    for (topology::core const& c : m.cores)
        text +=
            "\n  core " + to_list(c.pus) + " node " + std::to_string(c.node) + " speed " + std::to_string(c.efficiency);
    for (topology::numa_node const& n : m.nodes)
        text += "\n  node " + std::to_string(n.os_index) + " of " + to_list(n.pus) + " " + std::string(name(n.kind));
    for (topology::gpu const& g : m.gpus)
        text += "\n  gpu " + g.pci + " near " + to_list(g.pus);
    return text;
}
std::string shown(std::vector<rank_cores> const& all)
{
    std::string text;
    for (rank_cores const& r : all)
        text += "\n  " + std::to_string(r.rank) + ": adam " + to_list(r.adam_pus) + " host " + to_list(r.host_pus) +
                " nodes " + to_list(r.numa_nodes) + " (" + r.why + ")";
    return text;
}

// What must hold of answers, worked out from the machine and the request anew: sets and loops, nothing of the
// selector's.
class judge {
public:
    judge(machine const& m, core_request const& r) : m_(m), r_(r)
    {
        bound_outside_ = std::any_of(r.masks.begin(), r.masks.end(), [&](pu_set const& x) { return x != r.masks[0]; });
        for (unsigned rank = 0; rank < r.ranks; ++rank) {
            pu_set usable = m.allowed;
            if (!r.masks.empty())
                usable &= r.masks[rank < r.masks.size() ? rank : 0];
            usable_.push_back(usable);
            listed_.push_back(r.list.empty() ? usable : usable & r.list);
        }
        list_only_ = !r.list.empty() && !r.cpuadam_cores && !r.cpuadam_cores_perc && !r.pt_reserved_cores &&
                     !r.pt_reserved_cores_perc;
        for (topology::core const& c : m.cores)
            main_.push_back(main_memory(c.pus));
    }

    // The fewest cores with which a rank can be served.
    [[nodiscard]] std::size_t least() const
    {
        if (r_.cpuadam_cores)
            return *r_.cpuadam_cores == 1 ? 1 : *r_.cpuadam_cores + std::size_t{1};
        return r_.pt_reserved_cores ? *r_.pt_reserved_cores + std::size_t{1} : 1;
    }
    // Whether the request can be served. (Masks that overlap, or a list of PUs that are not there, are for others to
    // see.)
    [[nodiscard]] bool can_be_served() const
    {
        if (!bound_outside_)
            return cores_in(listed_[0]).size() / r_.ranks >= least();
        for (pu_set const& own : listed_)
            if (cores_in(own).size() < least())
                return false;
        return true;
    }

    // What is wrong with an answer; empty where nothing is.
    std::string verdict(std::vector<rank_cores> const& all)
    {
        if (all.size() != r_.ranks)
            return "an answer for each rank";
        for (unsigned r = 0; r < r_.ranks; ++r)
            if (std::string const wrong = one_rank(r, all[r]); !wrong.empty())
                return "rank " + std::to_string(r) + ": " + wrong;
        if (std::string const wrong = ranks_together(all); !wrong.empty())
            return wrong;
        if (bound_outside_) {
            for (unsigned r = 0; r < r_.ranks; ++r)
                if (std::string const wrong = pool_shared(all, r, 1); !wrong.empty())
                    return wrong;
            return {};
        }
        return pool_shared(all, 0, r_.ranks);
    }

    // How often each rule had something to judge.
    static std::map<std::string, std::size_t>& applied()
    {
        static std::map<std::string, std::size_t> counts;
        return counts;
    }

private:
    indexes cores_in(pu_set const& pus) const
    {
        indexes cores;
        for (unsigned c = 0; c < m_.cores.size(); ++c)
            if (m_.cores[c].pus.intersects(pus))
                cores.insert(c);
        return cores;
    }
    // Whether a node has memory, of a CPU.
    bool usable_memory(topology::numa_node const& n) const
    {
        return n.kind != memory_kind::gpu && (n.bytes != 0 || std::all_of(m_.nodes.begin(), m_.nodes.end(),
                                                                          [](auto const& x) { return x.bytes == 0; }));
    }
    // The operating system's index of the memory that is nearest: allowed, DRAM, of the fewest PUs; -1 where there is
    // none.
    int main_memory(pu_set const& pus) const
    {
        std::set<std::tuple<bool, int, std::size_t, unsigned>> candidates;
        for (topology::numa_node const& n : m_.nodes)
            if (!n.pus.empty() && n.pus.includes(pus) && usable_memory(n))
                candidates.insert({!n.allowed, static_cast<int>(n.kind), n.pus.size(), n.os_index});
        return candidates.empty() ? -1 : static_cast<int>(std::get<3>(*candidates.begin()));
    }
    std::map<int, indexes> by_memory(indexes const& cores) const
    {
        std::map<int, indexes> groups;
        for (unsigned const c : cores)
            groups[main_[c]].insert(c);
        return groups;
    }
    // Best first, as asked for the optimizer.
    std::vector<unsigned> speeds(indexes const& cores, std::size_t count) const
    {
        std::vector<unsigned> all;
        for (unsigned const c : cores)
            all.push_back(r_.fast == fast_cores::optimizer ? m_.cores[c].efficiency : 1000 - m_.cores[c].efficiency);
        std::sort(all.rbegin(), all.rend());
        all.resize(std::min(count, all.size()));
        return all;
    }
    topology::gpu const* gpu_of(unsigned rank) const
    {
        if (!r_.gpus.empty())
            for (topology::gpu const& g : m_.gpus)
                if (!r_.gpus[rank].empty() && g.pci == r_.gpus[rank])
                    return &g;
        return nullptr;
    }
    bool near(indexes const& cores, topology::gpu const& g) const
    {
        return std::all_of(cores.begin(), cores.end(), [&](unsigned c) { return m_.cores[c].pus.intersects(g.pus); });
    }
    static bool at_most_one_apart(std::vector<std::size_t> const& sizes)
    {
        auto const [low, high] = std::minmax_element(sizes.begin(), sizes.end());
        return sizes.empty() || *high - *low <= 1;
    }

    std::string one_rank(unsigned rank, rank_cores const& got)
    {
        if (got.rank != rank || got.why.empty())
            return "its number and why";
        indexes const adam = cores_in(got.adam_pus);
        indexes const host = cores_in(got.host_pus);
        if (adam.empty())
            return "no core for the optimizer";
        for (unsigned const c : adam)
            if (host.count(c) != 0)
                return "core " + std::to_string(c) + " is on both sides";

        pu_set const& host_pool = list_only_ ? usable_[rank] : listed_[rank];
        using pair = std::pair<pu_set const*, pu_set const*>;
        for (auto const& [side, pool] : {pair(&got.adam_pus, &listed_[rank]), pair(&got.host_pus, &host_pool)}) {
            if (side->intersects(m_.offline) || !m_.allowed.includes(*side) || !pool->includes(*side))
                return "PUs that may not be used, or not in the list";
            pu_set expected;
            for (unsigned const c : cores_in(*side)) {
                pu_set const own = m_.cores[c].pus & *pool;
                expected |= r_.smt == smt_policy::all ? own : index_set{own.front()};
            }
            if (*side != expected)
                return "PUs " + to_list(*side) + " rather than " + to_list(expected) + " of its cores";
        }

        node_set memory;
        for (unsigned const c : adam)
            for (topology::numa_node const& node : m_.nodes)
                if (static_cast<int>(node.os_index) == main_[c] && node.allowed)
                    memory.insert(node.os_index);
        std::size_t const bare = static_cast<std::size_t>(
            std::count_if(adam.begin(), adam.end(), [&](unsigned c) { return main_[c] == -1; }));
        if (bare == adam.size())
            for (unsigned const c : adam)
                for (topology::numa_node const& node : m_.nodes)
                    if (node.allowed && usable_memory(node) &&
                        node.pus.intersects(m_.packages[m_.cores[c].package].pus)) {
                        ++applied()["memory of the package"];
                        memory.insert(node.os_index);
                    }
        if (bare != 0 && !m_.nodes.empty()) {
            ++applied()["no local memory"];
            std::string const some = " (" + std::to_string(bare) + " of them with no local memory)";
            if (got.why.find(bare == adam.size() ? " with no local memory" : some) == std::string::npos)
                return "cores have no local memory, and nobody is told";
        } else if (got.why.find("no local memory") != std::string::npos)
            return "no local memory, it says, but there is";
        if (got.numa_nodes != memory)
            return "NUMA nodes " + to_list(got.numa_nodes) + " rather than " + to_list(memory);

        std::size_t const n = adam.size() + host.size();
        if (n > 1 && host.empty())
            return "no core for the host";
        if (list_only_)
            return {};
        if (std::string const wrong = share(adam.size(), n); !wrong.empty())
            return wrong;
        return side_of_optimizer(rank, adam, host);
    }

    std::string share(std::size_t adam, std::size_t n) const
    {
        if (r_.cpuadam_cores)
            return adam == *r_.cpuadam_cores ? "" : "not the cores that were asked for";
        if (r_.pt_reserved_cores)
            return n - adam == *r_.pt_reserved_cores ? "" : "not the cores that were reserved";
        double const cores = static_cast<double>(n);
        double const wanted = r_.pt_reserved_cores_perc ? cores * (1 - *r_.pt_reserved_cores_perc)
                                                        : cores * r_.cpuadam_cores_perc.value_or(0.8);
        bool const close = std::abs(static_cast<double>(adam) - wanted) <= 0.5 + 1e-9;
        bool const at_bound = (adam == 1 && wanted < 1) || (adam == n - 1 && wanted > cores - 1) || n == 1;
        return close || at_bound ? "" : "not the share that was asked for";
    }

    // The optimizer is in one NUMA node if it fits, near the GPU if there is room, and has the fast cores.
    std::string side_of_optimizer(unsigned rank, indexes const& adam, indexes const& host)
    {
        indexes both = adam;
        both.insert(host.begin(), host.end());
        auto groups = by_memory(both);
        auto const used = by_memory(adam);
        if (groups.count(-1) != 0 && groups.size() > 1) { // only where the others are not enough
            if (both.size() - groups[-1].size() < adam.size())
                return m_.hybrid() || by_memory(host).size() == by_memory(host).count(-1)
                           ? ""
                           : "the host has local memory that the optimizer lacks";
            ++applied()["memory of its own"];
            if (used.count(-1) != 0)
                return "the optimizer has no local memory, although there is enough";
            groups.erase(-1);
        }
        topology::gpu const* const device = gpu_of(rank);
        bool fits = false, near_fits = false;
        std::vector<std::size_t> sizes;
        for (auto const& [memory, cores] : groups) {
            sizes.push_back(cores.size());
            fits = fits || cores.size() >= adam.size();
            near_fits = near_fits || (device != nullptr && cores.size() >= adam.size() && near(cores, *device));
        }
        if (fits && groups.size() > 1) {
            ++applied()["one memory of several"];
            if (used.size() != 1)
                return "the optimizer fits in one NUMA node but has several";
        } else if (!fits && device == nullptr) {
            ++applied()["few memories"];
            std::sort(sizes.rbegin(), sizes.rend());
            std::size_t fewest = 0;
            for (std::size_t room = 0; room < adam.size(); ++fewest)
                room += sizes[fewest];
            if (used.size() != fewest)
                return "the optimizer has more NUMA nodes than it needs";
        }
        if (near_fits && groups.size() > 1) {
            ++applied()["near the GPU in a rank"];
            if (!near(adam, *device))
                return "there is room near the GPU, but the optimizer is elsewhere";
        }
        if (host.empty() || !m_.hybrid())
            return {};
        unsigned worst = 1001;
        for (unsigned const speed : speeds(adam, adam.size()))
            worst = std::min(worst, speed);
        for (unsigned const c : host)
            if (used.count(main_[c]) != 0 && speeds({c}, 1)[0] > worst)
                return "core " + std::to_string(c) + " should be the optimizer's rather than the host's";
        ++applied()["fast cores"];
        if (fits && device == nullptr)
            for (auto const& [memory, cores] : groups)
                if (cores.size() >= adam.size() && groups.size() > 1) {
                    ++applied()["fast nodes"];
                    if (speeds(cores, adam.size()) > speeds(adam, adam.size()))
                        return "another NUMA node has better cores";
                }
        return {};
    }

    std::string ranks_together(std::vector<rank_cores> const& all) const
    {
        pu_set given;
        std::map<unsigned, unsigned> owner;
        for (rank_cores const& r : all) {
            if (r.adam_pus.intersects(given) || r.host_pus.intersects(given))
                return "a PU is given twice";
            given |= r.adam_pus | r.host_pus;
            for (unsigned const c : cores_in(r.adam_pus | r.host_pus))
                if (auto const [at, is_new] = owner.insert({c, r.rank}); !is_new) {
                    bool const was_torn = bound_outside_ && r_.masks[r.rank].intersects(m_.cores[c].pus) &&
                                          r_.masks[at->second].intersects(m_.cores[c].pus);
                    if (!was_torn)
                        return "core " + std::to_string(c) + " is given to ranks " + std::to_string(at->second) +
                               " and " + std::to_string(r.rank);
                    for (unsigned const told : {r.rank, at->second})
                        if (all[told].why.find("the other half of some of its cores") == std::string::npos)
                            return "rank " + std::to_string(told) + " is not told that a core is torn";
                    ++applied()["torn cores"];
                }
        }
        return {};
    }

    // The pool that `ranks` ranks from `first` on share.
    std::string pool_shared(std::vector<rank_cores> const& all, unsigned first, unsigned ranks) const
    {
        indexes const pool = cores_in(listed_[first]);
        auto const groups = by_memory(pool);
        indexes given, hosts;
        std::vector<indexes> parts; // of the pool, for each rank
        bool each_in_one = true;
        bool any_gpu = false;
        std::map<int, std::vector<unsigned>> ranks_in;
        for (unsigned r = first; r < first + ranks; ++r) {
            indexes part = cores_in(all[r].adam_pus);
            for (unsigned const c : cores_in(all[r].host_pus))
                if (pool.count(c) != 0)
                    part.insert(c);
                else
                    hosts.insert(c);
            given.insert(part.begin(), part.end());
            for (unsigned const c : part)
                if (main_[c] != main_[*part.begin()])
                    each_in_one = false;
            ranks_in[main_[*part.begin()]].push_back(r);
            any_gpu = any_gpu || gpu_of(r) != nullptr;
            parts.push_back(part);
        }
        std::size_t const size = groups.begin()->second.size();
        bool const equal =
            std::all_of(groups.begin(), groups.end(), [&](auto const& g) { return g.second.size() == size; });

        if ((equal && !any_gpu) || ranks < groups.size()) {
            ++applied()["all cores"];
            if (given != pool)
                return "cores are left idle";
        }
        if (given != pool)
            for (unsigned r = first; r < first + ranks; ++r)
                if (all[r].why.find("idle") == std::string::npos)
                    return "cores are left idle, and nobody is told";
        if (list_only_) {
            ++applied()["list"];
            if (given != pool)
                return "the ranks together have not the list";
            indexes rest = cores_in(usable_[first]);
            for (unsigned const c : cores_in(r_.list))
                rest.erase(c);
            if (hosts != rest)
                return "the hosts have not the rest";
            for (unsigned r = first; r < first + ranks; ++r) {
                indexes const host = cores_in(all[r].host_pus);
                bool const of_list =
                    std::any_of(host.begin(), host.end(), [&](unsigned c) { return pool.count(c) != 0; });
                if (of_list && host.size() != 1)
                    return "a host has more than one core of the list";
                if (of_list && ranks <= rest.size())
                    return "a host has a core of the list although others are left";
            }
        }
        std::size_t const in_one_node = (ranks + groups.size() - 1) / groups.size();
        if (ranks >= groups.size() && equal && !any_gpu && groups.size() > 1 && size / in_one_node >= least()) {
            ++applied()["ranks spread over memories"];
            if (!each_in_one)
                return "a rank has cores of several NUMA nodes";
            std::vector<std::size_t> counts;
            for (auto const& [memory, cores] : groups)
                counts.push_back(ranks_in[memory].size());
            if (!at_most_one_apart(counts))
                return "ranks are spread unevenly over NUMA nodes";
        }
        if (each_in_one && ranks > 1)
            for (auto const& [memory, members] : ranks_in) {
                std::vector<std::size_t> sizes;
                std::map<unsigned, std::vector<std::size_t>> by_speed;
                for (unsigned const r : members) {
                    sizes.push_back(parts[r - first].size());
                    for (topology::core const& c : m_.cores)
                        by_speed[c.efficiency].resize(members.size());
                    for (unsigned const c : parts[r - first])
                        ++by_speed[m_.cores[c].efficiency][sizes.size() - 1];
                }
                ++applied()["ranks of one memory"];
                if (!at_most_one_apart(sizes))
                    return "ranks of one NUMA node have different numbers of cores";
                for (auto const& [speed, counts] : by_speed)
                    if (!at_most_one_apart(counts) && !(list_only_ && any_gpu)) // a list may be cut instead
                        return "ranks of one NUMA node have different cores";
            }
        if (std::string const wrong = in_one_memory(all, first, ranks, groups); !wrong.empty())
            return wrong;
        if (std::string const wrong = least_distance(all, first, parts, pool); !wrong.empty())
            return wrong;
        if (std::string const wrong = own_gpus(first, parts, groups, equal); !wrong.empty())
            return wrong;
        return near_gpus(all, first, ranks, groups, equal, size);
    }

    // If every optimizer fits in one memory, with those that share it, none has two.
    std::string in_one_memory(std::vector<rank_cores> const& all, unsigned first, unsigned ranks,
                              std::map<int, indexes> const& groups) const
    {
        std::size_t largest = 0;
        std::size_t room = 0;
        for (unsigned r = first; r < first + ranks; ++r)
            largest = std::max(largest, cores_in(all[r].adam_pus).size());
        for (auto const& [memory, cores] : groups)
            room += cores.size() / largest;
        if (list_only_ || groups.count(-1) != 0 || groups.size() < 2 || ranks < 2 || room < ranks)
            return {};
        ++applied()[ranks < groups.size() ? "one memory for each of a few ranks" : "one memory for each of many ranks"];
        for (unsigned r = first; r < first + ranks; ++r)
            if (by_memory(cores_in(all[r].adam_pus)).size() != 1)
                return "rank " + std::to_string(r) +
                       ": every optimizer fits in one NUMA node, but this one has several";
        return {};
    }

    // 0 near the GPU, 1 in a package that is, 2 elsewhere; and 0 wherever it says nothing about the pool's cores.
    unsigned distance(unsigned c, topology::gpu const* g, indexes const& pool) const
    {
        if (g == nullptr || near(pool, *g))
            return 0;
        return m_.cores[c].pus.intersects(g->pus) ? 0 : m_.packages[m_.cores[c].package].pus.intersects(g->pus) ? 1 : 2;
    }
    // No exchange of parts between ranks brings the cores that their optimizers may have nearer to their GPUs, on the
    // average.
    std::string least_distance(std::vector<rank_cores> const& all, unsigned first, std::vector<indexes> const& parts,
                               indexes const& pool) const
    {
        std::size_t const ranks = parts.size();
        if (ranks < 2 || ranks > 6 || r_.gpus.empty())
            return {};
        ++applied()["least distance"];
        auto const adam = [&](std::size_t p) {
            return list_only_ ? parts[p].size() : cores_in(all[first + p].adam_pus).size();
        };
        std::size_t unit = 1; // a common denominator
        for (std::size_t p = 0; p < ranks; ++p)
            unit = std::lcm(unit, adam(p));
        bool mixed = false;
        for (auto const& [memory, cores] : by_memory(pool))
            for (topology::gpu const& g : m_.gpus)
                mixed = mixed || std::any_of(cores.begin(), cores.end(), [&](unsigned c) {
                            return distance(c, &g, pool) != distance(*cores.begin(), &g, pool);
                        });
        std::vector<std::vector<std::size_t>> cost(ranks); // of each part to each rank
        for (std::size_t p = 0; p < ranks; ++p)
            for (std::size_t r = 0; r < ranks; ++r) {
                auto const mean = [&](indexes const& cores) {
                    std::vector<unsigned> each;
                    for (unsigned const c : cores)
                        each.push_back(distance(c, gpu_of(first + static_cast<unsigned>(r)), pool));
                    std::sort(each.begin(), each.end());
                    each.resize(adam(p));
                    return std::accumulate(each.begin(), each.end(), std::size_t{0}) * unit / adam(p);
                };
                std::vector<indexes> memories;
                std::size_t room = 0;
                for (auto const& [memory, cores] : by_memory(parts[p]))
                    if (memory != -1) {
                        memories.push_back(cores);
                        room += cores.size();
                    }
                std::pair best(~std::size_t{0}, std::size_t{0}); // the fewest memories, then the nearest
                for (std::size_t set = 1; set < std::size_t{1} << memories.size() && room >= adam(p); ++set) {
                    indexes cores;
                    std::size_t count = 0;
                    for (std::size_t k = 0; k < memories.size(); ++k)
                        if ((set >> k & 1) != 0) {
                            cores.insert(memories[k].begin(), memories[k].end());
                            ++count;
                        }
                    if (cores.size() >= adam(p))
                        best = std::min(best, std::pair(count, mean(cores)));
                }
                if (best.first > 1 && room >= adam(p) && mixed)
                    return {}; // then selection compares memories by their means
                cost[p].push_back(room >= adam(p) ? best.second : mean(parts[p]));
            }
        std::vector<std::size_t> order(ranks);
        std::iota(order.begin(), order.end(), std::size_t{0});
        auto const sum = [&] {
            std::size_t total = 0;
            for (std::size_t p = 0; p < ranks; ++p)
                total += cost[p][order[p]];
            return total;
        };
        std::size_t const ours = sum();
        while (std::next_permutation(order.begin(), order.end()))
            if (sum() < ours)
                return "other ranks should have these parts: distance " + std::to_string(sum()) + " rather than " +
                       std::to_string(ours);
        return {};
    }

    // Where ranks can have as many whole memories each, and each its own GPU's among them, they do.
    std::string own_gpus(unsigned first, std::vector<indexes> const& parts, std::map<int, indexes> const& groups,
                         bool equal) const
    {
        if (parts.size() < 2 || !equal || groups.size() <= parts.size() || groups.size() % parts.size() != 0)
            return {};
        std::set<int> theirs;
        std::vector<indexes> wanted;
        for (unsigned r = 0; r < parts.size(); ++r) {
            topology::gpu const* const device = gpu_of(first + r);
            for (auto const& [memory, cores] : groups)
                if (device != nullptr && cores_in(device->pus) == cores && theirs.insert(memory).second)
                    wanted.push_back(cores);
            if (wanted.size() != r + 1)
                return {};
        }
        ++applied()["own GPUs"];
        for (unsigned r = 0; r < parts.size(); ++r)
            if (!std::includes(parts[r].begin(), parts[r].end(), wanted[r].begin(), wanted[r].end()))
                return "rank " + std::to_string(r) + " has not the NUMA node of its GPU";
        return {};
    }

    // Where every memory has room for as many ranks as have their GPUs there, each is near its own.
    std::string near_gpus(std::vector<rank_cores> const& all, unsigned first, unsigned ranks,
                          std::map<int, indexes> const& groups, bool equal, std::size_t size) const
    {
        if (ranks < 2 || groups.size() < 2 || !equal || ranks % groups.size() != 0 || r_.gpus.empty() ||
            size / (ranks / groups.size()) < std::max<std::size_t>(least(), 2))
            return {};
        std::map<int, std::size_t> wanted;
        std::vector<unsigned> choosy; // ranks with a GPU that is near one of these memories
        for (unsigned r = first; r < first + ranks; ++r) {
            topology::gpu const* const device = gpu_of(r);
            std::vector<int> at;
            for (auto const& [memory, cores] : groups)
                if (device != nullptr && near(cores, *device))
                    at.push_back(memory);
                else if (device != nullptr && cores_in(device->pus).count(*cores.begin()) != 0)
                    return {}; // near a part of it: which is more than the rule is about
            if (at.size() == 1) {
                choosy.push_back(r);
                if (++wanted[at[0]] > ranks / groups.size())
                    return {};
            } else if (!at.empty() && at.size() != groups.size()) {
                return {}; // near some of them: who comes first decides
            }
        }
        for (unsigned const r : choosy) {
            ++applied()["ranks near their GPUs"];
            if (!near(cores_in(all[r].adam_pus), *gpu_of(r)))
                return "rank " + std::to_string(r) + " is not near its GPU";
            if (all[r].why.find("; near its GPU " + gpu_of(r)->pci) == std::string::npos)
                return "rank " + std::to_string(r) + " is not told about its GPU";
        }
        return {};
    }

    machine const& m_;
    core_request const& r_;
    bool bound_outside_ = false;
    bool list_only_ = false;
    std::vector<pu_set> usable_; // by each rank
    std::vector<pu_set> listed_; // what its optimizer may use
    std::vector<int> main_;      // memory of each core
};

// Whether a request was served, rightly; fails the test where it was wrongly, or not although it could have been.
bool served(machine const& m, core_request const& request, bool must_fail = false)
{
    judge bench(m, request);
    std::string wrong;
    std::vector<rank_cores> answer;
    bool refused = false;
    try {
        answer = select_cores(m, request);
    } catch (error const& e) {
        std::string const text = e.what();
        refused = true;
        wrong = text;
        if (text.compare(0, 9, "adamant: ") == 0 && text.find_first_of("0123456789") != std::string::npos &&
            (must_fail || !bench.can_be_served()))
            return false;
    } catch (std::exception const& e) {
        wrong = "not an error of adamant's: " + std::string(e.what());
    }
    if (wrong.empty() && (must_fail || !bench.can_be_served()))
        wrong = "this should have been refused";
    if (wrong.empty())
        wrong = bench.verdict(answer);
    if (wrong.empty()) {
        auto const again = select_cores(m, request);
        for (std::size_t r = 0; r < answer.size(); ++r)
            if (again[r].adam_pus != answer[r].adam_pus || again[r].host_pus != answer[r].host_pus ||
                again[r].numa_nodes != answer[r].numa_nodes || again[r].why != answer[r].why)
                wrong = "another answer the second time";
    }
    if (!wrong.empty()) {
        INFO(shown(request) << "\non " << shown(m).substr(0, 4000) << shown(answer));
        FAIL((refused ? "refused: " : "") << wrong);
    }
    return true;
}

// Machines of no particular make.
machine some_machine(test::random_bits& random)
{
    auto const chance = [&](std::size_t one_in) { return random.below(one_in) == 0; };
    auto const from = [&](std::size_t low, std::size_t high) { return low + random.below(high - low + 1); };
    machine m;
    m.source = "a random machine";
    std::size_t const packages = from(1, 3);
    bool const one_memory = chance(5);
    bool const equal = chance(2);
    bool const hybrid = chance(3);
    bool const numbered_by_thread = chance(2);
    std::size_t const nodes_each = from(1, 3);
    std::size_t const cores_each = from(1, 9);
    std::size_t const smt = chance(2) ? 1 : from(2, 4);

    struct place {
        unsigned package, node, core, thread;
    };
    std::vector<place> places;
    unsigned nodes = 0, cores = 0;
    for (unsigned p = 0; p < packages; ++p) {
        std::size_t const here = equal ? nodes_each : from(1, 3);
        for (std::size_t n = 0; n < here; ++n, ++nodes)
            for (std::size_t c = equal ? cores_each : from(1, 9); c > 0; --c, ++cores) {
                unsigned const speed = hybrid ? static_cast<unsigned>(random.below(3)) : 0;
                m.cores.push_back({.pus = {}, .package = p, .efficiency = speed});
                for (unsigned t = 0; t < (hybrid && speed == 0 ? 1 : smt); ++t)
                    places.push_back({p, nodes, cores, t});
            }
    }
    if (numbered_by_thread)
        std::stable_sort(places.begin(), places.end(),
                         [](place const& a, place const& b) { return a.thread < b.thread; });
    if (chance(4))
        for (std::size_t i = places.size(); i > 1; --i)
            std::swap(places[i - 1], places[random.below(i)]);
    unsigned const step = chance(6) ? 3 : 1;
    bool const some_offline = chance(4);

    m.packages.resize(packages);
    std::vector<pu_set> local(nodes);
    pu_set all;
    for (unsigned i = 0; i < places.size(); ++i) {
        if (some_offline && chance(5)) {
            m.offline.insert(i * step);
            continue;
        }
        m.cores[places[i].core].pus.insert(i * step);
        m.packages[places[i].package].pus.insert(i * step);
        local[places[i].node].insert(i * step);
        all.insert(i * step);
    }
    m.cores.erase(std::remove_if(m.cores.begin(), m.cores.end(), [](topology::core const& c) { return c.pus.empty(); }),
                  m.cores.end());
    if (m.cores.empty())
        return some_machine(random);

    unsigned os_index = static_cast<unsigned>(random.below(3));
    auto const add_node = [&](pu_set const& pus, memory_kind kind) {
        m.nodes.push_back({.os_index = os_index, .bytes = 1, .pus = pus, .kind = kind, .allowed = !chance(15)});
        os_index += static_cast<unsigned>(from(1, 30));
    };
    if (one_memory)
        add_node(all, memory_kind::dram);
    else if (!chance(20))
        for (pu_set const& pus : local) {
            if (chance(6))
                add_node({}, memory_kind::nvm); // of no core
            if (chance(8))
                add_node(pus, memory_kind::hbm);
            if (!chance(15)) // else its cores have the HBM or what is the whole machine's
                add_node(pus, memory_kind::dram);
            if (chance(8))
                add_node(pus, memory_kind::hbm);
        }
    if (!m.nodes.empty() && chance(4))
        add_node(all, chance(2) ? memory_kind::dram : memory_kind::nvm);
    if (m.nodes.size() > 1 && chance(2))
        std::swap(m.nodes[0].os_index, m.nodes[1].os_index);
    pu_set somewhere;
    for (topology::numa_node const& n : m.nodes)
        somewhere |= n.pus;
    if (!somewhere.includes(all) && !m.nodes.empty() && !chance(3)) // else some cores have no memory of their own
        add_node(all, memory_kind::dram);
    for (topology::core& c : m.cores)
        c.node = main_node(m, c.pus);

    m.allowed = all;
    if (chance(3))
        for (unsigned const pu : all.members())
            if (m.allowed.size() > 1 && chance(4))
                m.allowed.erase(pu);
    for (std::size_t g = random.below(5); g > 0; --g) {
        pu_set const near = chance(6)   ? all
                            : chance(3) ? m.packages[random.below(packages)].pus
                                        : local[random.below(nodes)];
        m.gpus.push_back({.pci = "0000:" + std::to_string(60 - g) + ":00.0", .name = "", .pus = near});
    }
    return m;
}

core_request some_request(machine const& m, test::random_bits& random, bool& must_fail)
{
    auto const chance = [&](std::size_t one_in) { return random.below(one_in) == 0; };
    auto const some_of = [&](pu_set const& of, std::size_t one_in) {
        pu_set some;
        for (unsigned const pu : of.members())
            if (chance(one_in))
                some.insert(pu);
        return some;
    };
    core_request r;
    r.ranks = static_cast<unsigned>(1 + random.below(chance(3) ? 9 : 4));
    switch (random.below(7)) {
    case 0: r.cpuadam_cores_perc = static_cast<double>(1 + random.below(100)) / 100; break;
    case 1: r.cpuadam_cores = static_cast<unsigned>(1 + random.below(6)); break;
    case 2: r.pt_reserved_cores = static_cast<unsigned>(1 + random.below(4)); break;
    case 3: r.pt_reserved_cores_perc = static_cast<double>(1 + random.below(99)) / 100; break;
    default: break;
    }
    if (chance(3))
        r.list = some_of(m.allowed, 2);
    switch (random.below(6)) {
    case 0: // as Slurm or taskset would; PUs that are not there may be among them
        r.masks.assign(chance(2) ? 1 : r.ranks, some_of(index_set::range(0, 120), 2));
        break;
    case 1: { // bound apart
        r.masks.resize(r.ranks);
        for (topology::core const& c : m.cores) {
            std::size_t const rank = random.below(r.ranks);
            for (unsigned const pu : c.pus.members()) // a torn core now and then
                r.masks[chance(20) ? random.below(r.ranks) : rank].insert(pu);
        }
        if (chance(8))
            r.masks[random.below(r.ranks)] = some_of(m.pus(), 2);
        break;
    }
    default: break;
    }
    if (chance(3) && !m.gpus.empty())
        for (unsigned rank = 0; rank < r.ranks; ++rank)
            r.gpus.push_back(chance(5) ? "" : m.gpus[random.below(m.gpus.size())].pci);
    r.smt = chance(3) ? smt_policy::all : smt_policy::one_per_core;
    r.fast = chance(3) ? fast_cores::host : fast_cores::optimizer;

    bool different = false;
    pu_set together, shared;
    for (pu_set const& mask : r.masks) {
        different = different || mask != r.masks[0];
        shared |= together & mask;
        together |= mask;
    }
    pu_set usable = m.allowed;
    if (!r.masks.empty())
        usable &= together;
    must_fail = (different && !shared.empty()) || !usable.includes(r.list);
    return r;
}

void try_random_machines(std::size_t machines, std::size_t requests, std::uint64_t seed)
{
    test::random_bits random(seed);
    std::size_t count = 0;
    judge::applied().clear();
    for (std::size_t i = 0; i < machines; ++i) {
        machine const m = some_machine(random);
        for (std::size_t j = 0; j < requests; ++j) {
            bool must_fail = false;
            core_request const request = some_request(m, random, must_fail);
            count += served(m, request, must_fail);
        }
    }
    std::size_t const tried = machines * requests;
    CHECK(count > tried / 3);
    CHECK(count < tried - tried / 10);
    for (char const* const rule :
         {"one memory of several", "few memories", "near the GPU in a rank", "fast cores", "fast nodes", "torn cores",
          "no local memory", "memory of its own", "all cores", "list", "ranks spread over memories",
          "ranks of one memory", "ranks near their GPUs", "one memory for each of a few ranks",
          "one memory for each of many ranks", "least distance"}) {
        INFO(rule);
        CHECK(judge::applied()[rule] >= std::max<std::size_t>(tried / 2000, 1));
    }
}

// NUMA nodes of so many cores, of `smt` PUs each: the second ones are numbered behind all the first ones.
machine machine_of(std::vector<unsigned> const& nodes, unsigned smt = 1)
{
    machine m;
    m.source = "the test's machine";
    unsigned total = 0;
    for (unsigned const n : nodes)
        total += n;
    for (unsigned n = 0; n < nodes.size(); ++n) {
        m.packages.emplace_back();
        m.nodes.push_back({.os_index = n, .bytes = 1, .pus = {}});
        for (unsigned c = 0; c < nodes[n]; ++c) {
            topology::core made{.pus = {}, .package = n, .node = n};
            for (unsigned t = 0; t < smt; ++t)
                made.pus.insert(t * total + static_cast<unsigned>(m.cores.size()));
            m.cores.push_back(made);
            m.packages[n].pus |= made.pus;
            m.nodes[n].pus |= made.pus;
        }
    }
    m.allowed = m.pus();
    return m;
}

// "adam|host|nodes" of each rank.
std::vector<std::string> answer(machine const& m, core_request const& request)
{
    std::vector<std::string> lines;
    for (rank_cores const& r : select_cores(m, request))
        lines.push_back(to_list(r.adam_pus) + "|" + to_list(r.host_pus) + "|" + to_list(r.numa_nodes));
    return lines;
}
using lines = std::vector<std::string>;

} // namespace

TEST_CASE("selection keeps its promises on random machines")
{
    try_random_machines(300, 4, 1);
}

TEST_CASE("selection keeps its promises on many random machines", "[slow]")
{
    try_random_machines(test::repeats(1000), 5, 2);
}

#if !defined(ADAMANT_NO_HWLOC)
namespace {

std::string file(char const* name)
{
    return std::string(ADAMANT_TOPOLOGIES) + "/" + name + ".xml";
}

} // namespace

TEST_CASE("slurm_mask smt_ecores: selection keeps its promises on machines that exist", "[slow]")
{
    std::string const machines[] = {
        file("nvidia-dgx-gb10"),         file("128arm-2pa2n8cluster4co"),     file("20em64t-hybrid-1p6c2t-2ca4co1t"),
        file("32em64t-2n8c2t-pci-noio"), file("48amd64-4pa2n6c-sparse"),      file("16em64t-4s2c2t-offlines"),
        file("fakeheteromemtiers"),      "pack:1 [numa] core:72 pu:1",        "pack:4 [numa] core:72 pu:1",
        "pack:2 [numa] core:96 pu:2",    "pack:2 group:4 [numa] core:16 pu:2"};
    index_set const no_mask = index_set::range(0, 999);
    std::vector<core_request> sizes(1);
    for (unsigned tenth = 1; tenth <= 10; ++tenth)
        sizes.emplace_back().cpuadam_cores_perc = tenth / 10.0;
    for (unsigned const n : {1u, 3u, 11u}) {
        sizes.emplace_back().cpuadam_cores = n;
        sizes.emplace_back().pt_reserved_cores = n;
    }
    sizes.emplace_back().pt_reserved_cores_perc = 0.25;
    sizes.emplace_back().list = {1, 3, 4, 6, 12, 15};
    sizes.emplace_back().list = parse_index_set("8-21,25-46");
    std::size_t count = 0;
    std::size_t tried = 0;
    for (std::string const& source : machines) {
        machine const m = read_machine(source);
        for (pu_set const& mask : {no_mask, parse_index_set("0,4-11,21-26,30-46"), parse_index_set("0-200:3")})
            for (unsigned const ranks : {1u, 2u, 4u, 8u})
                for (smt_policy const smt : {smt_policy::one_per_core, smt_policy::all})
                    for (fast_cores const fast : {fast_cores::optimizer, fast_cores::host}) {
                        if (fast == fast_cores::host && !m.hybrid())
                            continue;
                        for (core_request request : sizes) {
                            request.ranks = ranks;
                            if (mask != no_mask)
                                request.masks = {mask};
                            request.smt = smt;
                            request.fast = fast;
                            bool const absent = !(m.allowed & mask).includes(request.list);
                            count += served(m, request, absent);
                            ++tried;
                        }
                    }
    }
    CHECK(count > tried / 2);
}

// User reports: DeepSpeed #7478, sglang #39552.
TEST_CASE("the mask of DeepSpeed's issue, on two nodes of 24 cores", "[slurm_mask]")
{
    machine const m = machine_from_synthetic("pack:2 [numa] core:24 pu:1");
    core_request request;
    request.masks = {parse_index_set("0,4-11,21-26,30-46")}; // 12 cores in node 0, 20 in node 1
    // 26 of 32 fit in no node: all of the larger one, the last of the other.
    CHECK(answer(m, request) == lines{"9-11,21-26,30-46|0,4-8|0-1"});
    request.ranks = 2; // 10 of 12, 16 of 20
    CHECK(answer(m, request) == lines{"5-11,21-23|0,4|0", "31-46|24-26,30|1"});
    request.masks.push_back(request.masks[0]); // each rank has it
    CHECK(answer(m, request) == lines{"5-11,21-23|0,4|0", "31-46|24-26,30|1"});
    request.masks.pop_back();
    request.ranks = 4; // 6 and 6, 10 and 10
    CHECK(answer(m, request) == lines{"4-8|0|0", "10-11,21-23|9|0", "26,30-36|24-25|1", "39-46|37-38|1"});
    request.ranks = 1;
    request.cpuadam_cores = 12; // fit in both nodes: the last one
    CHECK(answer(m, request) == lines{"35-46|0,4-11,21-26,30-34|1"});
    request.cpuadam_cores = 20;
    CHECK(answer(m, request) == lines{"24-26,30-46|0,4-11,21-23|1"});
    request.cpuadam_cores = {};
    request.list = parse_index_set("21-26");
    CHECK(answer(m, request) == lines{"21-26|0,4-11,30-46|0-1"});
    request.ranks = 2;
    CHECK(answer(m, request) == lines{"21-23|0,4-11,30-33|0", "24-26|34-46|1"});
    request.pt_reserved_cores = 1; // now the list is all there is
    CHECK(answer(m, request) == lines{"22-23|21|0", "25-26|24|1"});
}

// User reports: DeepSpeed #6629, home-ops #9050.
TEST_CASE("a notebook of 6 fast and 8 slow cores", "[smt_ecores]")
{
    machine const m = machine_from_xml(file("20em64t-hybrid-1p6c2t-2ca4co1t"));
    core_request request;
    // 11 of 14: the 6 fast ones, and 5 of the slow ones 12-19.
    CHECK(answer(m, request) == lines{"0,2,4,6,8,10,15-19|12-14|0"});
    request.ranks = 2; // 3 fast and 4 slow each; 6 for the optimizer
    CHECK(answer(m, request) == lines{"0,2,4,13-15|12|0", "6,8,10,17-19|16|0"});
    request.smt = smt_policy::all;
    CHECK(answer(m, request) == lines{"0-5,13-15|12|0", "6-11,17-19|16|0"});
    request.fast = fast_cores::host;
    CHECK(answer(m, request) == lines{"2-5,12-15|0-1|0", "8-11,16-19|6-7|0"});
    request.fast = fast_cores::optimizer;
    request.cpuadam_cores = 3;
    CHECK(answer(m, request) == lines{"0-5|12-15|0", "6-11|16-19|0"});
    request.ranks = 4; // of 6 fast 2, 2, 1, 1; of 8 slow 2 each
    request.cpuadam_cores = 1;
    CHECK(answer(m, request) == lines{"2-3|0-1,12-13|0", "6-7|4-5,14-15|0", "8-9|16-17|0", "10-11|18-19|0"});
    request.ranks = 1; // one PU of each of two fast cores, and of two slow ones
    request.masks = {{1, 3, 12, 19}};
    request.cpuadam_cores = 3;
    CHECK(answer(m, request) == lines{"1,3,19|12|0"});
}

TEST_CASE("cores of five speeds in the middle of the numbering")
{
    machine const m = machine_from_xml(file("nvidia-dgx-gb10"));
    core_request request; // slowest to fastest: 0-4, 10-14, 5-9, 15-18, 19
    CHECK(answer(m, request) == lines{"4-19|0-3|0"});
    request.cpuadam_cores = 10;
    CHECK(answer(m, request) == lines{"5-9,15-19|0-4,10-14|0"});
    request.fast = fast_cores::host;
    CHECK(answer(m, request) == lines{"0-4,10-14|5-9,15-19|0"});
    request.cpuadam_cores = 1;
    request.fast = fast_cores::optimizer;
    CHECK(answer(m, request) == lines{"19|0-18|0"});
    request.cpuadam_cores = {};
    request.ranks = 2; // 1+0, 2+2, 2+3, 3+2, 2+3
    CHECK(answer(m, request) == lines{"5-6,10-12,15-16,19|0-1|0", "4,7-9,13-14,17-18|2-3|0"});
}

TEST_CASE("NUMA nodes have the operating system's numbers")
{
    machine const m = machine_from_xml(file("48amd64-4pa2n6c-sparse"));
    core_request request;
    request.ranks = 8; // 5 of 6
    CHECK(answer(m, request) == lines{"1-5|0|0", "7-11|6|1", "13-17|12|2", "19-23|18|33", "25-29|24|34", "31-35|30|45",
                                      "37-41|36|72", "43-47|42|73"});
    request.ranks = 2; // 19 of 24, in four nodes each
    CHECK(answer(m, request) == lines{"5-23|0-4|0-2,33", "29-47|24-28|34,45,72-73"});
    request.cpuadam_cores = 6;
    CHECK(answer(m, request) == lines{"18-23|0-17|33", "42-47|24-41|73"});
    request.ranks = 1;
    request.cpuadam_cores = {};
    request.cpuadam_cores_perc = 1; // which keeps one
    request.masks = {index_set::range(18, 47)};
    CHECK(answer(m, request) == lines{"19-47|18|33-34,45,72-73"});
    request.masks = {};
    request.cpuadam_cores_perc = {};
    request.list = index_set::range(18, 29);
    request.ranks = 2;
    CHECK(answer(m, request) == lines{"18-23|0-17|33", "24-29|30-47|34"});
}

TEST_CASE("state goes to DRAM where the cores have some, else to the nearest")
{
    machine const m = machine_from_xml(file("fakeheteromemtiers"));
    core_request request;
    request.ranks = 3;
    CHECK(answer(m, request) == lines{"1|0|0", "3|2|1", "5|4|2"}); // 2 is HBM, 9 beside it NVM
    request.ranks = 1;
    CHECK(answer(m, request) == lines{"1-5|0|0-2"});
    request.cpuadam_cores = 2;
    CHECK(answer(m, request) == lines{"4-5|0-3|2"});
}

TEST_CASE("PUs that are offline are left out, and lists that name them refused")
{
    machine const m = machine_from_xml(file("16em64t-4s2c2t-offlines"));
    core_request request; // cores 0, 4+12, 1, 6, 3, 15
    CHECK(answer(m, request) == lines{"1,3-4,6,15|0|0"});
    request.ranks = 2; // 2 of 3
    CHECK(answer(m, request) == lines{"1,4|0|0", "3,15|6|0"});
    request.smt = smt_policy::all;
    CHECK(answer(m, request) == lines{"1,4,12|0|0", "3,15|6|0"});
    request.list = {2, 3, 5};
    CHECK(mentions(refusal<unavailable>([&] { (void)select_cores(m, request); }),
                   {"PUs 2,5 of the list 2-3,5", "0-1,3-4,6,12,15 are allowed", "2,5,7-11,13-14 are offline"}));
}

TEST_CASE("siblings that are numbered n and n+16 stay together")
{
    machine const m = machine_from_xml(file("32em64t-2n8c2t-pci-noio"));
    core_request request;
    request.ranks = 2; // 6 of 8
    CHECK(answer(m, request) == lines{"2-7|0-1|0", "10-15|8-9|1"});
    request.smt = smt_policy::all;
    CHECK(answer(m, request) == lines{"2-7,18-23|0-1,16-17|0", "10-15,26-31|8-9,24-25|1"});
    request.masks = {parse_index_set("0-1,16-19,24,30-31")}; // cores 0-3 of node 0 and 8, 14, 15 of node 1
    CHECK(answer(m, request) == lines{"1,17-19|0,16|0", "30-31|24|1"});
    request.ranks = 1; // 6 of 7: the larger node, and two of the other
    CHECK(answer(m, request) == lines{"0-1,16-19,30-31|24|0-1"});
    request.smt = smt_policy::one_per_core;
    CHECK(answer(m, request) == lines{"0-1,18-19,30-31|24|0-1"});
    request.list = {16};
    CHECK(answer(m, request) == lines{"16|1,18-19,24,30-31|0"});
}

TEST_CASE("four GH200, a Xeon and an EPYC")
{
    core_request request;
    request.ranks = 4; // 58 of 72
    CHECK(answer(machine_from_synthetic("pack:4 [numa] core:72 pu:1"), request) ==
          lines{"14-71|0-13|0", "86-143|72-85|1", "158-215|144-157|2", "230-287|216-229|3"});
    request.ranks = 1;
    request.cpuadam_cores = 95; // PUs 2n and 2n+1 are one core
    machine const xeon = machine_from_synthetic("pack:2 [numa] core:96 pu:2");
    CHECK(to_list(select_cores(xeon, request)[0].host_pus) == to_list(parse_index_set("0-190:2,192")));
    request.cpuadam_cores = {};
    request.ranks = 8;
    request.pt_reserved_cores = 4;
    request.smt = smt_policy::all;
    auto const epyc = answer(machine_from_synthetic("pack:2 group:4 [numa] core:16 pu:2"), request);
    CHECK(epyc[0] == "8-31|0-7|0");
    CHECK(epyc[7] == "232-255|224-231|7");
}
#endif

TEST_CASE("a rank has its own mask where the masks differ")
{
    machine const m = machine_of({4, 4});
    core_request request;
    request.ranks = 2;
    request.masks = {{4, 5, 6, 7}, {0, 1, 2}};
    CHECK(answer(m, request) == lines{"5-7|4|1", "1-2|0|0"});
    CHECK(mentions("adamant: " + select_cores(m, request)[1].why,
                   {"rank 1 of 2 has 3 cores, those that it was bound to"}));
    request.masks = {{0, 1, 2, 3}, {0, 1, 2, 3}}; // alike: shared out
    CHECK(answer(m, request) == lines{"1|0|0", "3|2|0"});
    request.masks = {{0, 1, 2, 3}, {3, 4, 5}};
    CHECK(
        mentions(refusal<invalid_argument>([&] { (void)select_cores(m, request); }), {"ranks 0 and 1", "share PUs 3"}));
    request.masks = {{0, 1, 2, 3}, {}};
    CHECK(mentions(refusal<unavailable>([&] { (void)select_cores(m, request); }),
                   {"rank 1 may use no PU", "0-7 are allowed", "the mask is none"}));
    request.masks = {{0, 1, 2, 3}, {8, 9}};
    CHECK(mentions(refusal<unavailable>([&] { (void)select_cores(m, request); }), {"rank 1", "the mask is 8-9"}));
    request.masks = {{0, 1, 2, 3}, {4, 99}};
    CHECK(mentions("adamant: " + select_cores(m, request)[1].why, {"PUs 99 of the mask do not exist here"}));

    machine const torn = machine_of({2}, 2); // cores 0+2 and 1+3
    request.masks = {{0, 1}, {2, 3}};
    CHECK(answer(torn, request) == lines{"1|0|0", "3|2|0"});
    for (rank_cores const& r : select_cores(torn, request))
        CHECK(mentions("adamant: " + r.why, {"another rank was bound to the other half of some of its cores"}));
}

TEST_CASE("a list is the optimizer's, and the host has the rest")
{
    machine const m = machine_of({4, 4});
    core_request request;
    request.list = {1, 2, 6};
    CHECK(answer(m, request) == lines{"1-2,6|0,3-5,7|0-1"});
    request.list = m.allowed; // no rest: the host keeps one
    CHECK(answer(m, request) == lines{"1-7|0|0-1"});
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why,
                   {"as the list says", "1 for the host", "no other is left"}));
    request.ranks = 8;
    CHECK(answer(m, request)[7] == "7||1");
    CHECK(mentions("adamant: " + select_cores(m, request)[7].why, {"none for the host"}));
    request.ranks = 1;
    request.list = {2, 4, 5, 6}; // with a size, the list is all there is
    request.cpuadam_cores_perc = 0.5;
    CHECK(answer(m, request) == lines{"5-6|2,4|1"});
    machine const uneven = machine_of({8, 4});
    request = {}; // no core of the list is left out where a node has few of them
    request.ranks = 2;
    request.list = {0, 1, 2, 3, 4, 5, 6, 7, 11};
    CHECK(answer(uneven, request) == lines{"0-3|8|0", "4-7,11|9-10|0-1"});
    request = {};
    machine const siblings = machine_of({4}, 2);
    request.cpuadam_cores_perc = 0.5;
    request.smt = smt_policy::all;
    request.list = {1, 5, 6, 7}; // cores 1, 2, 3; of core 1 both
    CHECK(answer(siblings, request) == lines{"6-7|1,5|0"});
    request.cpuadam_cores_perc = {};
    CHECK(answer(siblings, request) == lines{"1,5-7|0,4|0"});
}

TEST_CASE("cores that have no local memory")
{
    machine m = machine_of({4, 4, 4}); // in the first and the last package the memory is offline
    m.nodes = {m.nodes[1]};
    for (topology::core& c : m.cores)
        c.node = main_node(m, c.pus);
    core_request request;
    CHECK(answer(m, request) == lines{"2-11|0-1|1"}); // 10 of 12
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why,
                   {"10 for the optimizer in NUMA node 1 (6 of them with no local memory), 2 for the host"}));
    request.cpuadam_cores = 4; // fits where the memory is, and elsewhere
    CHECK(answer(m, request) == lines{"4-7|0-3,8-11|1"});
    CHECK(select_cores(m, request)[0].why.find("local") == std::string::npos);
    request.cpuadam_cores = {};
    request.ranks = 3;
    request.masks = {{0, 1, 2}, {4, 5, 6, 7}, {8, 9}};
    CHECK(answer(m, request) == lines{"1-2|0|", "5-7|4|1", "9|8|"});
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why,
                   {"2 for the optimizer in places with no local memory"}));
    CHECK(mentions("adamant: " + select_cores(m, request)[2].why,
                   {"1 for the optimizer in a place with no local memory"}));
}

TEST_CASE("fast nodes before slow ones, and equal parts wherever counts need them")
{
    machine m = machine_of({4, 4});
    for (unsigned c = 0; c < 4; ++c)
        m.cores[c].efficiency = 1;
    core_request request;
    request.cpuadam_cores = 3;
    CHECK(answer(m, request) == lines{"1-3|0,4-7|0"});
    request.fast = fast_cores::host;
    CHECK(answer(m, request) == lines{"5-7|0-4|1"});

    // 32 cores for two ranks: cut at the end of a node that is close, but not where that leaves a rank too few.
    machine const uneven = machine_of({15, 9, 8});
    request = {};
    request.ranks = 2;
    CHECK(answer(uneven, request) == lines{"3-14|0-2|0", "15-23,27-31|24-26|1-2"});
    request.cpuadam_cores = 15;
    CHECK(answer(uneven, request) == lines{"0-14|15|0", "17-31|16|1-2"});
    request.cpuadam_cores = {};
    request.pt_reserved_cores = 15;
    CHECK(select_cores(uneven, request)[0].host_pus.size() == 15);

    // A node with too few cores for a rank stays out, and the ranks are told.
    machine const crumb = machine_of({12, 1});
    request = {};
    request.ranks = 2;
    CHECK(answer(crumb, request) == lines{"1-5|0|0", "7-11|6|0"});
    CHECK(mentions("adamant: " + select_cores(crumb, request)[0].why, {"1 core", "idle"}));
}

namespace {

// Packages of NUMA nodes of one size, each node with a GPU, whose number is the node's.
machine machine_with_gpus(unsigned packages, unsigned nodes_each, unsigned cores_each)
{
    machine m = machine_of(std::vector<unsigned>(std::size_t{packages} * nodes_each, cores_each));
    m.packages.assign(packages, {});
    for (topology::core& c : m.cores) {
        c.package = c.node / nodes_each;
        m.packages[c.package].pus |= c.pus;
    }
    for (unsigned n = 0; n < m.nodes.size(); ++n) {
        char address[16];
        std::snprintf(address, sizeof address, "0000:%02x:00.0", n);
        m.gpus.push_back({.pci = address, .name = "", .pus = m.nodes[n].pus});
    }
    return m;
}

} // namespace

TEST_CASE("few ranks have the nodes of their GPUs")
{
    // Four GH200: a GPU at each of four Grace nodes.
    machine const grace = machine_with_gpus(4, 1, 72);
    core_request request;
    request.ranks = 2; // 115 of 144
    request.gpus = {"0", "1"};
    CHECK(answer(grace, request) == lines{"0-71,173-215|144-172|0,2", "72-143,245-287|216-244|1,3"});
    CHECK(
        mentions("adamant: " + select_cores(grace, request)[1].why, {"; 72 of 115 cores near its GPU 0000:01:00.0;"}));
    request.gpus = {"2", "3"};
    CHECK(answer(grace, request) == lines{"29-71,144-215|0-28|0,2", "101-143,216-287|72-100|1,3"});
    request.gpus = {"1", "0"};
    CHECK(answer(grace, request) == lines{"72-143,173-215|144-172|1-2", "0-71,245-287|216-244|0,3"});
    request.gpus = {"1", "2"}; // as they are
    CHECK(answer(grace, request) == lines{"29-143|0-28|0-1", "144-215,245-287|216-244|2-3"});
    machine masked = grace; // a core that others have: a node still is not torn for it
    masked.allowed.erase(72);
    request.gpus = {"0", "1"};
    CHECK(answer(masked, request) == lines{"0-71,173-215|144-172|0,2", "73-143,245-287|216-244|1,3"});

    // A rank without a GPU leaves the nodes next to one to those who have it.
    machine const two = machine_with_gpus(2, 3, 4);
    request.ranks = 3;
    request.gpus = {"", "1", "0"};
    request.cpuadam_cores_perc = 0.9; // 7 of 8
    CHECK(answer(two, request) == lines{"13-19|12|3-4", "4-7,9-11|8|1-2", "0-3,21-23|20|0,5"});
    request.cpuadam_cores_perc = {};

    // DGX A100, four nodes in each of two sockets, with two GPUs each at nodes 3, 1, 7 and 5: nobody is in the other
    // socket, as far as the sockets go.
    machine const dgx = machine_with_gpus(2, 4, 16);
    lines const at = {"3", "3", "1", "1", "7", "7", "5", "5"};
    auto const packages = [&](rank_cores const& r) {
        std::string text;
        for (unsigned const n : r.numa_nodes.members())
            text += n < 4 ? '0' : '1';
        return text;
    };
    for (unsigned const ranks : {4u, 6u}) {
        request.ranks = ranks;
        request.gpus.assign(at.begin(), at.begin() + ranks);
        std::size_t near = 0;
        for (rank_cores const& r : select_cores(dgx, request)) {
            INFO(r.why);
            CHECK(packages(r).find(r.rank < 4 ? '0' : '1') != std::string::npos);
            near += (r.adam_pus & dgx.gpus[std::stoul(at[r.rank])].pus).size();
        }
        CHECK(near == 16 * ranks / 2); // all cores of the GPUs' nodes
    }
}

TEST_CASE("no grouping of whole nodes is nearer to the GPUs than selection's")
{
    test::random_bits random(3);
    judge::applied().clear();
    for (int i = 0; i < 150; ++i) {
        unsigned const packages = 1u << random.below(3);
        unsigned const nodes_each = packages == 1 ? 4 : packages == 2 ? 2 + static_cast<unsigned>(random.below(2)) : 1;
        unsigned const nodes = packages * nodes_each;
        unsigned const size = 2 + static_cast<unsigned>(random.below(3));
        machine const m = machine_with_gpus(packages, nodes_each, size);
        core_request request;
        request.ranks = nodes == 6 && random.below(2) == 0 ? 3 : 2;
        request.cpuadam_cores_perc = static_cast<double>(1 + random.below(100)) / 100;
        for (unsigned r = 0; r < request.ranks; ++r)
            request.gpus.push_back(random.below(8) == 0 ? "" : m.gpus[random.below(nodes)].pci);
        CHECK(served(m, request));

        auto const all = select_cores(m, request);
        std::size_t const wanted = all[0].adam_pus.size();
        auto const distance = [&](pu_set const& cores, unsigned rank) {
            std::vector<unsigned> each;
            for (unsigned const c : cores.members()) {
                auto const gpu = std::find_if(m.gpus.begin(), m.gpus.end(),
                                              [&](auto const& g) { return g.pci == request.gpus[rank]; });
                each.push_back(gpu == m.gpus.end()                                     ? 2
                               : gpu->pus.contains(c)                                  ? 0
                               : m.packages[m.cores[c].package].pus.includes(gpu->pus) ? 1
                                                                                       : 2);
            }
            std::sort(each.begin(), each.end());
            return std::accumulate(each.begin(), each.begin() + static_cast<std::ptrdiff_t>(wanted), 0u);
        };
        unsigned ours = 0;
        for (rank_cores const& r : all)
            ours += distance(r.adam_pus | r.host_pus, r.rank);
        unsigned best = ~0u;
        std::vector<unsigned> rank_of; // of each node
        for (unsigned n = 0; n < nodes; ++n)
            rank_of.push_back(n * request.ranks / nodes);
        do {
            std::vector<pu_set> parts(request.ranks);
            for (unsigned n = 0; n < nodes; ++n)
                parts[rank_of[n]] |= m.nodes[n].pus;
            unsigned sum = 0;
            for (unsigned r = 0; r < request.ranks; ++r)
                sum += distance(parts[r], r);
            best = std::min(best, sum);
        } while (std::next_permutation(rank_of.begin(), rank_of.end()));
        INFO(shown(request) << "\non " << shown(m) << shown(all));
        CHECK(ours <= best); // ranks of one GPU may share its node
    }
    CHECK(judge::applied()["own GPUs"] > 20);
}

TEST_CASE("an optimizer that fits in one NUMA node has one, with fewer ranks than nodes, too")
{
    machine const m = machine_of({72, 72, 72, 72});
    core_request request;
    request.ranks = 3;
    request.cpuadam_cores = 60;
    CHECK(answer(m, request) == lines{"12-71|0-11,216-239|0", "84-143|72-83,240-263|1", "156-215|144-155,264-287|2"});
    request.cpuadam_cores = 72; // all of it
    CHECK(answer(m, request) == lines{"0-71|216-239|0", "72-143|240-263|1", "144-215|264-287|2"});
    request.cpuadam_cores = 73; // fits in none: as the machine goes
    CHECK(answer(m, request) == lines{"0-71,95|72-94|0-1", "119-191|96-118|1-2", "215-287|192-214|2-3"});
    // Parts are as even as that needs: 33 cores, with four whole nodes, were to have 17 for the optimizer.
    core_request half;
    half.ranks = 2;
    half.cpuadam_cores_perc = 0.5;
    CHECK(answer(machine_of({16, 16, 11, 6, 9, 6}), half) == lines{"0-15|32-47|0", "16-31|48-63|1"});
    // More ranks than nodes, none of which has room for whole ranks.
    request.cpuadam_cores = 3;
    CHECK(answer(machine_of({7, 7}), request) == lines{"1-3|0|0", "4-6|7-8|0", "11-13|9-10|1"});
}

TEST_CASE("cores are cut at the nearest end of a node, and of two at that of a package")
{
    machine m = machine_of(std::vector<unsigned>(32, 4));
    m.packages.assign(2, {});
    for (topology::core& c : m.cores) {
        c.package = c.node / 16;
        m.packages[c.package].pus |= c.pus;
    }
    core_request request;
    request.ranks = 2;
    CHECK(answer(m, request) == lines{"13-63|0-12|3-15", "77-127|64-76|19-31"});
    m.allowed -= index_set::range(120, 123); // 124 cores, to be cut at 62: 60 and 64 are as near
    request.cpuadam_cores_perc = 0.5;
    CHECK(answer(m, request) == lines{"32-63|0-31|8-15", "94-119,124-127|64-93|23-29,31"});
}

TEST_CASE("ranks are near their GPUs")
{
    machine m = machine_of({4, 4, 4, 4});
    char const* const addresses[] = {"0000:17:00.0", "0000:3b:00.0", "0000:9a:00.0", "0001:00:00.0"};
    for (unsigned g = 0; g < 4; ++g) // the first GPU is in the last node
        m.gpus.push_back({.pci = addresses[g], .name = "", .pus = m.nodes[3 - g].pus});
    core_request request;
    request.ranks = 4;
    lines const reversed = {"13-15|12|3", "9-11|8|2", "5-7|4|1", "1-3|0|0"};
    for (auto const& gpus : {lines{"0", "1", "2", "3"}, lines{"0000:17:00.0", "3b:00.0", "00000000:9A:00.0", "3"}}) {
        request.gpus = gpus;
        CHECK(answer(m, request) == reversed);
        CHECK(mentions("adamant: " + select_cores(m, request)[1].why, {"; near its GPU 0000:3b:00.0"}));
    }
    request.gpus = {"", "3", "", "0"};
    CHECK(answer(m, request) == lines{"5-7|4|1", "1-3|0|0", "9-11|8|2", "13-15|12|3"});
    request.ranks = 2; // two nodes each
    request.gpus = {"", "3"};
    CHECK(answer(m, request) == lines{"10-15|8-9|2-3", "0-3,6-7|4-5|0-1"});
    request.gpus = {"0", "3"};
    CHECK(answer(m, request) == lines{"10-15|8-9|2-3", "0-3,6-7|4-5|0-1"});
    m.gpus.push_back({.pci = "0002:00:00.0", .name = "", .pus = m.allowed}); // as where nobody knows
    request.gpus = {"4", "3"};
    CHECK(answer(m, request) == lines{"10-15|8-9|2-3", "0-3,6-7|4-5|0-1"});
    request.ranks = 1;
    request.gpus = {"2"};
    request.cpuadam_cores = 4;
    CHECK(answer(m, request) == lines{"4-7|0-3,8-15|1"});
    request.cpuadam_cores = 5;
    CHECK(answer(m, request)[0].ends_with("|1,3"));
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why, {"; 4 of 5 cores near its GPU 0000:9a:00.0;"}));
    request.ranks = 2;
    request.gpus = {"0", "5"};
    CHECK(mentions(refusal<unavailable>([&] { (void)select_cores(m, request); }),
                   {"cannot find GPU 5 of rank 1", "0 (0000:17:00.0), 1 (0000:3b:00.0)", "4 (0002:00:00.0)"}));
    m.gpus.clear();
    CHECK(mentions(refusal<unavailable>([&] { (void)select_cores(m, request); }), {"rank 0", "GPU 0", "has no GPU"}));
}

TEST_CASE("the reason says what a rank has")
{
    machine m = machine_of({4, 4}, 2);
    m.note = "a note of the machine";
    core_request request;
    CHECK(mentions(
        "adamant: " + select_cores(m, request)[0].why,
        {"rank 0 of 1 has 8 cores, all that are allowed: 6 for the optimizer in NUMA nodes 0-1, 2 for the host",
         "; one PU per core", "; a note of the machine"}));
    request.ranks = 2;
    request.smt = smt_policy::all;
    request.cpuadam_cores_perc = 1;
    CHECK(
        mentions("adamant: " + select_cores(m, request)[1].why,
                 {"rank 1 of 2 has 4 cores, its share of 8: 3 for the optimizer in NUMA node 1, 1 for the host (one is "
                  "always kept for it)",
                  "; all PUs of each core"}));
    m.cores[0].efficiency = 1;
    request.fast = fast_cores::host;
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why, {"the fast cores go to the host first"}));
    m.nodes.clear();
    CHECK(mentions("adamant: " + select_cores(m, request)[0].why, {"for the optimizer in the test's machine"}));
}

TEST_CASE("requests that cannot be meant are refused, with what was asked")
{
    machine const m = machine_of({4, 4});
    auto const refused = [&](auto change) {
        core_request request;
        change(request);
        return refusal<invalid_argument>([&] { (void)select_cores(m, request); });
    };
    for (double const wrong : {0.0, -0.5, 1.5, std::nan(""), HUGE_VAL})
        CHECK(mentions(refused([&](core_request& r) { r.cpuadam_cores_perc = wrong; }),
                       {"cpuadam_cores_perc is", "above 0 and at most 1"}));
    CHECK(mentions(refused([&](core_request& r) { r.cpuadam_cores_perc = 80; }), {"80"}));
    for (double const wrong : {0.0, 1.0, -1.0, std::nan("")})
        CHECK(mentions(refused([&](core_request& r) { r.pt_reserved_cores_perc = wrong; }),
                       {"pt_reserved_cores_perc is", "above 0 and below 1"}));
    CHECK(mentions(refused([](core_request& r) { r.cpuadam_cores = 0; }),
                   {"cpuadam_cores is 0, but must be at least 1"}));
    CHECK(mentions(refused([](core_request& r) { r.pt_reserved_cores = 0; }),
                   {"pt_reserved_cores is 0, but must be at least 1"}));
    CHECK(mentions(refused([](core_request& r) { r.ranks = 0; }), {"ranks is 0"}));
    CHECK(
        mentions(refused([](core_request& r) { r.cpuadam_cores = 1, r.pt_reserved_cores = 1; }), {"more than one of"}));
    CHECK(mentions(refused([](core_request& r) { r.cpuadam_cores_perc = .5, r.pt_reserved_cores_perc = .5; }),
                   {"more than one of"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.ranks = 3, r.masks = {{0}, {1}};
                   }),
                   {"for 3 ranks", "masks has 2 entries"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.ranks = 1, r.gpus = {"", ""};
                   }),
                   {"for 1 rank", "gpus has 2 entries"}));
}

TEST_CASE("requests that this machine cannot serve are refused, with what there was")
{
    machine m = machine_of({4, 4});
    auto const refused = [&](auto change) {
        core_request request;
        change(request);
        return refusal<unavailable>([&] { (void)select_cores(m, request); });
    };
    CHECK(mentions(
        refused([](core_request& r) { r.cpuadam_cores = 8; }),
        {"rank 0 has 8 cores (allowed are PUs 0-7)", "8 cores were requested for the optimizer", "ask for at most 7"}));
    CHECK(mentions(refused([](core_request& r) { r.cpuadam_cores = 4, r.ranks = 2; }),
                   {"rank 0 has 4 cores (its share of those of 2 ranks", "ask for at most 3"}));
    CHECK(
        mentions(refused([](core_request& r) { r.cpuadam_cores = 0xffffffffu; }), {"4294967295 cores were requested"}));
    CHECK(mentions(refused([](core_request& r) { r.pt_reserved_cores = 4, r.ranks = 2; }),
                   {"rank 0 has 4 cores", "4 cores are reserved", "keep at most 3"}));
    CHECK(mentions(refused([](core_request& r) { r.pt_reserved_cores = 0xffffffffu; }),
                   {"4294967295 cores are reserved"}));
    CHECK(
        mentions(refused([](core_request& r) { r.pt_reserved_cores = 1, r.ranks = 8; }), {"ask for a share instead"}));
    CHECK(mentions(refused([](core_request& r) { r.ranks = 9; }), {"cannot divide 8 cores (PUs 0-7) among 9 ranks"}));
    CHECK(mentions(refused([](core_request& r) { r.ranks = 0xffffffffu; }), {"4294967295 ranks", "8 cores"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.ranks = 3, r.list = {2, 6};
                   }),
                   {"cannot divide 2 cores (PUs 2,6) among 3 ranks"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.list = {2, 8, 9};
                   }),
                   {"PUs 8-9 of the list 2,8-9", "0-7 are allowed"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.list = {1, 2}, r.masks = {{2, 3}};
                   }),
                   {"PUs 1 of the list 1-2", "2-3 are allowed"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.list = {2, 4}, r.cpuadam_cores = 2;
                   }),
                   {"rank 0 has 2 cores", "the list 2,4", "ask for at most 1"}));
    CHECK(mentions(refused([](core_request& r) {
                       r.ranks = 2, r.list = {2}, r.masks = {{2, 3}, {4, 5}};
                   }),
                   {"rank 1 is bound to PUs 4-5, none of which is in the list 2"}));
    CHECK(mentions(refused([](core_request& r) { r.masks = {{8}}; }),
                   {"this process may use no PU", "0-7", "the mask is 8"}));
    m.allowed = {};
    CHECK(mentions(refused([](core_request&) {}), {"this process may use no PU", "none are allowed"}));
}

// User reports: numactl #165.
TEST_CASE("state goes to the nearest node that has memory", "[node_without_memory]")
{
    machine m = machine_of({4, 4, 4, 4}); // two packages of two nodes
    m.packages = {{m.nodes[0].pus | m.nodes[1].pus}, {m.nodes[2].pus | m.nodes[3].pus}};
    for (topology::core& c : m.cores)
        c.package = c.node / 2;
    auto const renew = [&] {
        for (topology::core& c : m.cores)
            c.node = main_node(m, c.pus);
    };
    core_request request;
    request.ranks = 4;
    request.masks = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}; // from outside
    CHECK(answer(m, request) == lines{"1-3|0|0", "5-7|4|1", "9-11|8|2", "13-15|12|3"});
    for (topology::numa_node& n : m.nodes)
        n.bytes = 0; // not known
    renew();
    CHECK(answer(m, request) == lines{"1-3|0|0", "5-7|4|1", "9-11|8|2", "13-15|12|3"});
    for (unsigned const n : {0u, 3u}) // DIMMs in these only
        m.nodes[n].bytes = 1;
    renew();
    CHECK(answer(m, request) == lines{"1-3|0|0", "5-7|4|0", "9-11|8|3", "13-15|12|3"});
    CHECK(mentions("adamant: " + select_cores(m, request)[1].why,
                   {"3 for the optimizer in places with no local memory (the nearest is in NUMA node 0), 1 for"}));
    m.nodes[3].bytes = 0; // none in the package: the kernel's choice
    renew();
    CHECK(answer(m, request) == lines{"1-3|0|0", "5-7|4|0", "9-11|8|", "13-15|12|"});
    m.nodes[3].bytes = 1;
    m.nodes[3].allowed = false;
    renew();
    CHECK(answer(m, request)[2] == "9-11|8|");
    // One rank: half of its cores have memory, which is all it may name.
    m.nodes[3].allowed = true;
    renew();
    request = {};
    CHECK(answer(m, request)[0].ends_with("|0,3"));
}

// User reports: numactl #165.
TEST_CASE("no rank gets a GPU's memory, and DRAM is preferred to memory without CPUs", "[node_without_memory]")
{
    machine m = machine_of({4, 4});
    for (memory_kind const kind : {memory_kind::gpu, memory_kind::hbm, memory_kind::nvm, memory_kind::other})
        for (bool const closer : {false, true}) {
            m.nodes.resize(2);
            for (unsigned n : {0u, 1u}) // CPU-less nodes, numbered before or behind
                m.nodes.push_back({.os_index = 10 + n, .bytes = 2, .pus = m.nodes[n].pus, .kind = kind});
            if (closer) // than DRAM, which is the machine's
                m.nodes[0].pus = m.nodes[1].pus = m.allowed;
            for (topology::core& c : m.cores)
                c.node = main_node(m, c.pus);
            core_request request;
            request.ranks = 2;
            for (rank_cores const& r : select_cores(m, request))
                CHECK(to_list(r.numa_nodes) == (closer ? "0" : std::to_string(r.rank)));
            m = machine_of({4, 4});
        }
    for (topology::numa_node& n : m.nodes)
        n.kind = memory_kind::gpu;
    for (topology::core& c : m.cores)
        c.node = main_node(m, c.pus);
    CHECK(answer(m, {})[0].ends_with("|"));
}

TEST_CASE("the main node is allowed, of DRAM, near, and the lowest")
{
    machine m;
    CHECK(main_node(m, {0}) == no_node);
    m.nodes = {{.os_index = 5, .bytes = 0, .pus = {}, .kind = memory_kind::dram},
               {.os_index = 4, .bytes = 0, .pus = {0, 1, 2, 3}, .kind = memory_kind::dram},
               {.os_index = 3, .bytes = 0, .pus = {0, 1}, .kind = memory_kind::hbm},
               {.os_index = 2, .bytes = 0, .pus = {0, 1}, .kind = memory_kind::dram},
               {.os_index = 1, .bytes = 0, .pus = {0, 1}, .kind = memory_kind::dram, .allowed = false},
               {.os_index = 6, .bytes = 0, .pus = {2, 3}, .kind = memory_kind::nvm}};
    CHECK(main_node(m, {0, 1}) == 3);
    CHECK(main_node(m, {2}) == 1);          // though NVM is closer
    CHECK(main_node(m, {0, 1, 2, 3}) == 1); // the only one that is local to all of them
    CHECK(main_node(m, {1, 2}) == 1);
    CHECK(main_node(m, {3, 4}) == no_node); // none is local to both
    CHECK(main_node(m, {4}) == no_node);
    m.nodes[3].os_index = 0;
    m.nodes[4].allowed = true;
    CHECK(main_node(m, {0}) == 3);
    m.nodes[4].os_index = 0;
    m.nodes[3].os_index = 1;
    CHECK(main_node(m, {0}) == 4);
    for (topology::numa_node& n : m.nodes)
        n.allowed = n.pus.size() == 4;
    CHECK(main_node(m, {0}) == 1); // the nearer ones may not be used
}

namespace {

// The variables that launchers set: none but those given, until it goes out of scope.
class launched_with {
public:
    explicit launched_with(std::initializer_list<std::pair<char const*, char const*>> variables)
    {
        for (char const* const name :
             {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
              "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
              "SLURM_TASKS_PER_NODE", "SLURM_NODEID"}) {
            char const* const value = std::getenv(name);
            before_.emplace_back(name, value == nullptr ? std::optional<std::string>() : value);
            unsetenv(name);
        }
        for (auto const& [name, value] : variables)
            setenv(name, value, 1);
    }
    launched_with(launched_with const&) = delete;
    launched_with& operator=(launched_with const&) = delete;
    ~launched_with()
    {
        for (auto const& [name, value] : before_)
            if (value)
                setenv(name, value->c_str(), 1);
            else
                unsetenv(name);
    }

private:
    std::vector<std::pair<char const*, std::optional<std::string>>> before_;
};

// "rank of ranks by source", or the error.
std::string rank_with(std::initializer_list<std::pair<char const*, char const*>> variables)
{
    launched_with const environment(variables);
    try {
        local_rank const r = rank_from_environment();
        return std::to_string(r.rank) + " of " + std::to_string(r.ranks) + (r.source.empty() ? "" : " by " + r.source);
    } catch (invalid_argument const& error) {
        return error.what();
    }
}

} // namespace

TEST_CASE("the rank comes from the launcher")
{
    CHECK(rank_with({}) == "0 of 1");
    CHECK(rank_with({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "4"}}) == "2 of 4 by LOCAL_RANK and LOCAL_WORLD_SIZE");
    CHECK(rank_with({{"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}) ==
          "0 of 2 by OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE");
    CHECK(rank_with({{"MPI_LOCALRANKID", "7"}, {"MPI_LOCALNRANKS", "8"}}) ==
          "7 of 8 by MPI_LOCALRANKID and MPI_LOCALNRANKS");
    CHECK(rank_with({{"SLURM_LOCALID", "1"}, {"SLURM_TASKS_PER_NODE", "2"}}) ==
          "1 of 2 by SLURM_LOCALID and SLURM_TASKS_PER_NODE");
    CHECK(rank_with({{"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}, {"SLURM_TASKS_PER_NODE", "9"}}) ==
          "1 of 2 by SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE");
    // The nearer launcher wins: torchrun inside mpirun inside Slurm. An empty variable is none.
    CHECK(rank_with({{"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                     {"MPI_LOCALRANKID", "3"},
                     {"MPI_LOCALNRANKS", "5"},
                     {"SLURM_LOCALID", "x"}}) == "1 of 2 by LOCAL_RANK and LOCAL_WORLD_SIZE");
    CHECK(rank_with({{"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                     {"MPI_LOCALRANKID", "3"},
                     {"MPI_LOCALNRANKS", "5"}})
              .starts_with("0 of 1 by OMPI"));
    CHECK(
        rank_with({{"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "5"}, {"SLURM_LOCALID", "0"}}).starts_with("3 of 5"));
    CHECK(rank_with({{"LOCAL_RANK", ""}, {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "5"}}).starts_with("3 of 5"));
    CHECK(rank_with({{"LOCAL_WORLD_SIZE", "8"}}) == "0 of 1"); // a count alone says nothing of a rank
}

TEST_CASE("Slurm counts tasks for each node")
{
    auto const count = [](char const* tasks, char const* node) {
        std::string const text =
            rank_with({{"SLURM_LOCALID", "0"}, {"SLURM_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", node}});
        return text.substr(0, text.find(" by"));
    };
    CHECK(count("4(x2),3", "0") == "0 of 4");
    CHECK(count("4(x2),3", "1") == "0 of 4");
    CHECK(count("4(x2),3", "2") == "0 of 3");
    CHECK(count("1,2(x3),16", "0") == "0 of 1");
    CHECK(count("1,2(x3),16", "3") == "0 of 2");
    CHECK(count("1,2(x3),16", "4") == "0 of 16");
    CHECK(count("8", "") == "0 of 8");
    for (char const* const text : {"", "x", "4(x2", "4(x", "4(x)", "4(2)", "(x2)", ",4", "4x", "4;", "4(x2)3", "-4"}) {
        INFO(text);
        CHECK(mentions(count(text, "0"), {"SLURM_LOCALID is set", "SLURM_TASKS_PER_NODE does not say"}));
    }
    CHECK(mentions(count("4(x2),3", "3"), {"SLURM_TASKS_PER_NODE does not say"})); // no such node
    CHECK(mentions(count("4(x2),", "2"), {"SLURM_TASKS_PER_NODE does not say"}));
    CHECK(mentions(count("4", "first"), {"SLURM_NODEID is \"first\""}));
}

TEST_CASE("a rank that a launcher leaves unclear is an error that names the variables")
{
    CHECK(mentions(rank_with({{"LOCAL_RANK", "1"}}), {"LOCAL_RANK is set, but LOCAL_WORLD_SIZE does not say"}));
    CHECK(mentions(rank_with({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", ""}}), {"LOCAL_WORLD_SIZE does not say"}));
    CHECK(mentions(rank_with({{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE does not say"}));
    CHECK(mentions(rank_with({{"MPI_LOCALRANKID", "1"}}), {"MPI_LOCALNRANKS does not say"}));
    CHECK(mentions(rank_with({{"SLURM_LOCALID", "1"}}), {"SLURM_LOCALID is set", "TASKS_PER_NODE does not say"}));
    CHECK(mentions(rank_with({{"LOCAL_RANK", "4"}, {"LOCAL_WORLD_SIZE", "4"}}),
                   {"LOCAL_RANK is 4 but LOCAL_WORLD_SIZE says that this host has 4 ranks", "count from 0"}));
    CHECK(mentions(rank_with({{"SLURM_LOCALID", "3"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}}),
                   {"SLURM_LOCALID is 3", "2 ranks"}));
    CHECK(mentions(rank_with({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "0"}}), {"has 0 ranks"}));
    for (char const* const wrong : {"x", "-1", "+1", " 1", "1 ", "0x1", "1.0", "99999999999999999999", "1\n"}) {
        INFO(wrong);
        CHECK(mentions(rank_with({{"LOCAL_RANK", wrong}, {"LOCAL_WORLD_SIZE", "2"}}),
                       {"LOCAL_RANK is \"", "not a whole number"}));
        CHECK(mentions(rank_with({{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", wrong}}), {"LOCAL_WORLD_SIZE is \""}));
    }
}
