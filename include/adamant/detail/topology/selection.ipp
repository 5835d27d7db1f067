// SPDX-License-Identifier: Apache-2.0
// Definition of select_cores() of adamant/cores.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/topology/core_sharing.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class selector : core_sharing {
public:
    selector(machine const& machine, core_request const& request) : core_sharing(machine, request) {}

    std::vector<rank_cores> select()
    {
        check_request();
        find_masks();
        std::vector<rank_cores> all;
        if (bound_outside_)
            for (unsigned r = 0; r < request_.ranks; ++r) {
                usable_ = request_.masks[r] & machine_.allowed;
                divide(r, 1, all);
            }
        else
            divide(0, request_.ranks, all);
        return all;
    }

private:
    struct region { // cores of one rank
        core_list adam;
        core_list host;
        core_list all; // before split()
    };

    static std::string or_none(index_set const& set) { return set.empty() ? "none" : to_list(set); }

    void check_request() const
    {
        core_request const& r = request_;
        auto const share = [](std::optional<double> const& value, char const* name, bool one_is_fine) {
            if (value && !(*value > 0 && (*value < 1 || (one_is_fine && *value == 1))))
                throw_invalid_argument({name, " is ", *value, ", but must be a share: above 0 and ",
                                        one_is_fine ? "at most 1" : "below 1"});
        };
        share(r.cpuadam_cores_perc, "cpuadam_cores_perc", true);
        share(r.pt_reserved_cores_perc, "pt_reserved_cores_perc", false);
        if (r.cpuadam_cores && *r.cpuadam_cores == 0)
            throw_invalid_argument({"cpuadam_cores is 0, but must be at least 1"});
        if (r.pt_reserved_cores && *r.pt_reserved_cores == 0)
            throw_invalid_argument({"pt_reserved_cores is 0, but must be at least 1"});
        if (sizes() > 1)
            throw_invalid_argument(
                {"cannot select cores: more than one of cpuadam_cores_perc, cpuadam_cores, pt_reserved_cores and "
                 "pt_reserved_cores_perc is set. Set one; it decides the others."});
        if (r.ranks == 0)
            throw_invalid_argument({"ranks is 0, but must be at least 1"});
        if (r.masks.size() > 1 && r.masks.size() != r.ranks)
            throw_invalid_argument({"cannot select cores for ", counted(r.ranks, "rank"), ": masks has ",
                                    r.masks.size(), " entries. Pass one for all ranks, or one for each."});
        if (!r.gpus.empty() && r.gpus.size() != r.ranks)
            throw_invalid_argument({"cannot select cores for ", counted(r.ranks, "rank"), ": gpus has ", r.gpus.size(),
                                    " entries. Pass one for each rank."});
    }
    void find_masks()
    {
        usable_ = machine_.allowed;
        for (pu_set const& mask : request_.masks)
            bound_outside_ = bound_outside_ || mask != request_.masks.front();
        if (!request_.masks.empty() && !bound_outside_)
            usable_ &= request_.masks.front();
        pu_set union_of_masks = usable_;
        if (bound_outside_) {
            union_of_masks = {};
            for (unsigned a = 0; a < request_.ranks; ++a)
                for (unsigned b = 0; b < a; ++b)
                    if (request_.masks[a].intersects(request_.masks[b]))
                        throw_invalid_argument({"ranks ", b, " and ", a, " have different masks that share PUs ",
                                                to_list(request_.masks[a] & request_.masks[b]),
                                                "; bind them apart, or all alike to have the mask shared out"});
            for (pu_set const& mask : request_.masks)
                union_of_masks |= mask & machine_.allowed;
        }
        if (pu_set const missing = request_.list - union_of_masks; !missing.empty())
            throw_unavailable({"PUs ", to_list(missing), " of the list ", to_list(request_.list),
                               " may not be used: of ", machine_.source, ", ", or_none(union_of_masks), " are allowed",
                               machine_.offline.intersects(missing)
                                   ? text_of({", and ", to_list(machine_.offline), " are offline"})
                                   : ""});
    }

    // Returns the cores with PUs in a set.
    core_list cores_of(pu_set const& pus) const
    {
        core_list cores;
        for (unsigned c = 0; c < machine_.cores.size(); ++c)
            if (machine_.cores[c].pus.intersects(pus))
                cores.push_back(c);
        return cores;
    }

    // Divides usable_ between the ranks [first, first + ranks).
    void divide(unsigned first, unsigned ranks, std::vector<rank_cores>& all)
    {
        if (usable_.empty())
            throw_unavailable({bound_outside_ ? "rank " + std::to_string(first) : std::string("this process"),
                               " may use no PU: of ", machine_.source, ", ", or_none(machine_.allowed), " are allowed",
                               request_.masks.empty()
                                   ? ""
                                   : ", and the mask is " + or_none(request_.masks[bound_outside_ ? first : 0])});
        pu_set const usable_list = request_.list & usable_;
        bool const has_list = !request_.list.empty();
        if (has_list && usable_list.empty())
            throw_unavailable({"rank ", first, " is bound to PUs ", to_list(usable_), ", none of which is in the list ",
                               to_list(request_.list)});
        core_list const pool = cores_of(has_list ? usable_list : usable_);
        if (pool.size() < ranks)
            throw_unavailable({"cannot divide ", counted(pool.size(), "core"), " (PUs ",
                               to_list(has_list ? usable_list : usable_), ") among ", counted(ranks, "rank"),
                               ": each needs at least one core"});
        std::vector<region> regions(ranks);
        std::vector<core_list> const parts = assign(pool, first, ranks);
        idle_ = pool.size();
        for (unsigned r = 0; r < ranks; ++r) {
            regions[r].all = parts[r];
            idle_ -= parts[r].size();
        }
        if (list_is_the_optimizers())
            give_rest_to_hosts(regions);
        else
            for (unsigned r = 0; r < ranks; ++r)
                split(regions[r], first + r);
        pu_set const pus = has_list && !list_is_the_optimizers() ? usable_list : usable_;
        for (unsigned r = 0; r < ranks; ++r)
            all.push_back(describe(regions[r], first + r, has_list ? usable_list : usable_, pus));
    }
    // Throws if a rank's n cores are too few for the request.
    void check_size(std::size_t n, unsigned rank) const
    {
        auto const fail = [&](std::string const& problem, std::string const& remedy) {
            throw_unavailable({"rank ", rank, " has ", counted(n, "core"), " (",
                               request_.ranks == 1 || bound_outside_
                                   ? ""
                                   : "its share of those of " + counted(request_.ranks, "rank") + "; ",
                               request_.list.empty() ? "" : "of the list " + to_list(request_.list) + "; ",
                               "allowed are PUs ", to_list(usable_), "), but ", problem, "; ", remedy});
        };
        if (request_.cpuadam_cores) {
            std::size_t const requested = *request_.cpuadam_cores;
            if (n < requested + 1 && !(n == 1 && requested == 1))
                fail(text_of({counted(requested, "core"), requested == 1 ? " was" : " were",
                              " requested for the optimizer, and one is kept for the host"}),
                     "ask for at most " + std::to_string(std::max<std::size_t>(n - 1, 1)));
        } else if (request_.pt_reserved_cores) {
            std::size_t const reserved = *request_.pt_reserved_cores;
            if (n < reserved + 1)
                fail(text_of({counted(reserved, "core"), reserved == 1 ? " is" : " are",
                              " reserved for the host, which leaves none for the optimizer"}),
                     n == 1 ? "ask for a share instead, or allow more cores" : "keep at most " + std::to_string(n - 1));
        }
    }

    // Splits a rank's cores between optimizer and host. The optimizer gets cores with local memory, in as few NUMA
    // nodes as possible, near the GPU, and fast or slow as requested. Of equal cores it gets the last ones, because the
    // system's own threads mostly run on the first ones.
    void split(region& r, unsigned rank) const
    {
        check_size(r.all.size(), rank);
        std::size_t const optimizer_cores = optimizer_share(r.all.size());
        std::vector<unsigned char> const gpu_distances = distances_of(r.all, rank, 1).front();
        auto const is_better = [&](unsigned a, unsigned b) {
            unsigned const fast_a = machine_.cores[a].efficiency;
            unsigned const fast_b = machine_.cores[b].efficiency;
            return request_.fast == fast_cores::optimizer ? fast_a > fast_b : fast_a < fast_b;
        };
        std::vector<group> groups = by_node(r.all);
        std::reverse(groups.begin(), groups.end());
        for (group& g : groups) {
            std::reverse(g.cores.begin(), g.cores.end());
            detail::sort_stably(g.cores, is_better);
        }
        detail::sort_stably(groups, [&](group const& a, group const& b) {
            if (auto const order = preference(a, b, optimizer_cores, gpu_distances); order != 0)
                return order < 0;
            auto const end = static_cast<std::ptrdiff_t>(std::min({optimizer_cores, a.cores.size(), b.cores.size()}));
            return std::lexicographical_compare(a.cores.begin(), a.cores.begin() + end, b.cores.begin(),
                                                b.cores.begin() + end, is_better);
        });
        core_list candidates;
        for (group const& g : optimizer_nodes(std::move(groups), optimizer_cores, gpu_distances))
            candidates.insert(candidates.end(), g.cores.begin(), g.cores.end());
        detail::sort_stably(candidates, is_better);
        r.adam.assign(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(optimizer_cores));
        std::sort(r.adam.begin(), r.adam.end());
        std::set_difference(r.all.begin(), r.all.end(), r.adam.begin(), r.adam.end(), std::back_inserter(r.host));
    }

    // Gives an explicit list to the optimizers, and the other cores to the hosts, in order. A host without a core gets
    // the first of its rank's cores.
    void give_rest_to_hosts(std::vector<region>& regions) const
    {
        core_list rest;
        core_list const list_cores = cores_of(request_.list);
        core_list const usable = cores_of(usable_);
        std::set_difference(usable.begin(), usable.end(), list_cores.begin(), list_cores.end(),
                            std::back_inserter(rest));
        // Ranks are sorted in the order of the machine, so that each gets cores close to its own.
        std::vector<region*> order;
        for (region& r : regions)
            order.push_back(&r);
        std::sort(order.begin(), order.end(), [](region const* a, region const* b) { return a->all < b->all; });
        std::size_t begin = 0;
        for (std::size_t k = 0; k < order.size(); ++k) {
            region& r = *order[k];
            std::size_t const end = rest.size() * (k + 1) / order.size();
            r.adam = r.all;
            r.host.assign(rest.begin() + static_cast<std::ptrdiff_t>(begin),
                          rest.begin() + static_cast<std::ptrdiff_t>(end));
            begin = end;
            if (r.host.empty() && r.adam.size() > 1) {
                r.host.assign(1, r.adam.front());
                r.adam.erase(r.adam.begin());
            }
        }
    }

    pu_set pus_of(core_list const& cores, pu_set const& usable) const
    {
        pu_set pus;
        for (unsigned const c : cores) {
            pu_set const core_pus = machine_.cores[c].pus & usable;
            if (request_.smt == smt_policy::all)
                pus |= core_pus;
            else
                pus.insert(core_pus.front());
        }
        return pus;
    }

    rank_cores describe(region const& r, unsigned rank, pu_set const& optimizer_usable, pu_set const& host_usable) const
    {
        rank_cores result;
        result.rank = rank;
        result.adam_pus = pus_of(r.adam, optimizer_usable);
        result.host_pus = pus_of(r.host, host_usable);
        std::size_t without_memory = 0;
        for (unsigned const c : r.adam)
            if (topology::numa_node const* const memory = machine_.memory_of(machine_.cores[c]); memory == nullptr)
                ++without_memory;
            else if (memory->allowed)
                result.numa_nodes.insert(memory->os_index);
        bool const none_local = without_memory == r.adam.size(); // the nearest memory may be in their packages
        if (none_local)
            for (unsigned const c : r.adam)
                for (topology::numa_node const& node : machine_.nodes)
                    if (node.allowed && machine_.holds_state(node) &&
                        machine_.cores[c].package < machine_.packages.size() &&
                        node.pus.intersects(machine_.packages[machine_.cores[c].package].pus))
                        result.numa_nodes.insert(node.os_index);

        std::size_t const n = r.adam.size() + r.host.size();
        std::string const nodes =
            (result.numa_nodes.size() == 1 ? "NUMA node " : "NUMA nodes ") + to_list(result.numa_nodes);
        std::string why = text_of({"rank ", rank, " of ", request_.ranks, " has ", counted(n, "core")});
        if (bound_outside_)
            why += ", those that it was bound to from outside";
        else if (list_is_the_optimizers())
            why += ", as the list says";
        else if (request_.ranks > 1)
            why += ", its share of " + std::to_string(cores_of(optimizer_usable).size());
        else
            why += ", all that " + std::string(request_.list.empty() ? "are allowed" : "are in the list");
        why += text_of({": ", r.adam.size(), " for the optimizer in "});
        if (machine_.nodes.empty())
            why += machine_.source;
        else if (none_local) {
            why += without_memory == 1 ? "a place with no local memory" : "places with no local memory";
            if (!result.numa_nodes.empty())
                why += " (the nearest is in " + nodes + ")";
        } else {
            if (result.numa_nodes.empty())
                why += "a place whose memory is not allowed";
            else
                why += nodes;
            if (without_memory != 0)
                why += text_of({" (", without_memory, " of them with no local memory)"});
        }
        if (r.host.empty())
            why += ", none for the host, whose threads share it";
        else
            why += text_of({", ", r.host.size(), " for the host"});
        if (list_is_the_optimizers() && !r.host.empty() &&
            (machine_.cores[r.host.front()].pus & request_.list).size() != 0)
            why += " (the first of the list, as no other is left)";
        if (auto const& perc = request_.cpuadam_cores_perc; perc && *perc == 1 && !r.host.empty())
            why += " (one is always kept for it)";
        if (machine_.hybrid())
            why += std::string("; the fast cores go to the ") +
                   (request_.fast == fast_cores::optimizer ? "optimizer" : "host") + " first";
        if (topology::gpu const* const device = gpu_of(rank)) {
            std::size_t const near_cores = count_near(r.adam, device);
            if (near_cores == 0)
                why += "; not near its GPU ";
            else if (near_cores == r.adam.size())
                why += "; near its GPU ";
            else
                why += "; " + std::to_string(near_cores) + " of " + counted(r.adam.size(), "core") + " near its GPU ";
            why += device->pci;
            std::vector<unsigned char> const gpu_distances = distances_of(r.adam, rank, 1).front();
            if (auto const in_package = std::count(gpu_distances.begin(), gpu_distances.end(), 1); in_package != 0)
                why += (near_cores != 0                    ? text_of({", ", in_package, " more "})
                        : in_package == std::ssize(r.adam) ? std::string(", but ")
                                                           : text_of({", but ", in_package, " "})) +
                       "in its package";
        }
        why += request_.smt == smt_policy::all ? "; all PUs of each core" : "; one PU per core";
        if (double const quota = quota_of_rank(); quota > 0) {
            why +=
                text_of({"; the CPU quota is ", machine_.quota.cpus, " of ", counted(machine_.allowed.size(), "CPU")});
            if (request_.ranks > 1)
                why += text_of({", ", quota, " for each rank"});
            if (static_cast<double>(result.adam_pus.size()) > std::max(quota, 1.0))
                why += text_of({", less than the optimizer's ", counted(result.adam_pus.size(), "thread")});
        }
        auto const is_split = [&](unsigned c) { return bound_outside_ && shared_with_other(c, rank); };
        if (std::any_of(r.adam.begin(), r.adam.end(), is_split) || std::any_of(r.host.begin(), r.host.end(), is_split))
            why += "; another rank was bound to the other half of some of its cores";
        if (idle_ != 0)
            why += "; " + counted(idle_, "core") + " in NUMA nodes without a rank " + (idle_ == 1 ? "is" : "are") +
                   " left idle";
        if (pu_set const absent =
                request_.masks.empty() ? pu_set{} : request_.masks[bound_outside_ ? rank : 0] - machine_.allowed;
            !absent.empty())
            why += "; PUs " + to_list(absent) + " of the mask do not exist here or are not allowed";
        if (!machine_.note.empty())
            why += "; " + machine_.note;
        result.why = std::move(why);
        return result;
    }

    bool shared_with_other(unsigned c, unsigned rank) const
    {
        for (unsigned r = 0; r < request_.ranks; ++r)
            if (r != rank && machine_.cores[c].pus.intersects(request_.masks[r]))
                return true;
        return false;
    }

    pu_set usable_;
    std::size_t idle_ = 0; // number of cores of the pool without a rank
    bool bound_outside_ = false;
};

} // namespace detail

ADAMANT_DECL std::vector<rank_cores> select_cores(machine const& machine, core_request const& request)
{
    detail::default_mode_scope const mode;
    return detail::selector(machine, request).select();
}

ADAMANT_END_NAMESPACE
