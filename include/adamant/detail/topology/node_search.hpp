// SPDX-License-Identifier: Apache-2.0
// Search for the NUMA nodes of optimizers where there are fewer ranks than nodes.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <adamant/detail/core/abi.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/topology/least_assignment.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Assigns cores of nodes to ranks: the fewest nodes, summed over ranks, then the least cost. Branch and bound: selects
// the nodes of one rank after the other. The lower bound is the minimum-cost flow in which later ranks may use all
// nodes. Deterministic, because all ranks must find the same assignment: the work is bounded by a count, not by time.
class node_search {
public:
    using counts = std::vector<std::size_t>;
    using costs = std::vector<std::int64_t>;
    using shares = std::vector<counts>; // cores of each rank in each node

    struct rating {
        std::size_t nodes = 0;
        std::int64_t cost = 0;
        friend auto operator<=>(rating const&, rating const&) = default;
    };

    // `room`: cores of each node. `wanted`: cores of each rank, in sum at most the room. `cost`: of each rank and node,
    // for one core.
    node_search(counts room, counts const& wanted, std::vector<costs> const& cost)
        : room_(std::move(room)), usable_(wanted.size(), std::vector<bool>(room_.size(), true)),
          reserved_(room_.size()), fewest_later_(wanted.size() + 1)
    {
        // Equal ranks follow each other; those without a preference are the last.
        order_.resize(wanted.size());
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        detail::sort_stably(order_, [&](std::size_t a, std::size_t b) {
            return std::tie(cost[b], wanted[b]) < std::tie(cost[a], wanted[a]);
        });
        for (std::size_t const r : order_) {
            wanted_.push_back(wanted[r]);
            cost_.push_back(cost[r]);
        }
        counts largest = room_;
        std::sort(largest.rbegin(), largest.rend());
        for (std::size_t r = wanted_.size(); r-- > 0;) {
            std::size_t nodes = 0;
            for (std::size_t sum = 0; sum < wanted_[r] && nodes < largest.size(); ++nodes)
                sum += largest[nodes];
            fewest_later_[r] = fewest_later_[r + 1] + nodes;
        }
    }

    // The best assignment, if it is better than `known`. Where the work ends the search, the best of those tried.
    std::optional<shares> better_than(rating known)
    {
        best_ = known;
        result_.reset();
        work_ = 0;
        if (std::optional<flow> const bound = cheapest(); bound && rating{fewest_later_[0], bound->cost} < best_)
            if (!assign_whole_nodes())
                select_nodes(0, 0, {}, classes_of_nodes());
        if (!result_)
            return std::nullopt;
        shares sorted(order_.size());
        for (std::size_t r = 0; r < order_.size(); ++r)
            sorted[order_[r]] = std::move((*result_)[r]);
        return sorted;
    }

    // Whether better_than() had no need to end the search early.
    [[nodiscard]] bool complete() const { return work_ <= most_work; }

private:
    static constexpr std::size_t most_work = 1'000'000; // edges of flow networks and candidates: milliseconds

    struct flow {
        std::int64_t cost = 0;
        shares cores;
    };
    // Solves the case in which each rank can have its fewest nodes and no node can be shared in more than one way, as
    // an assignment of pieces: a rank's cores in one node. False where it is another case.
    bool assign_whole_nodes()
    {
        auto const [smallest, largest] = std::minmax_element(room_.begin(), room_.end());
        auto const [least, most] = std::minmax_element(wanted_.begin(), wanted_.end());
        bool const one_each = fewest_later_[0] == wanted_.size();
        if (!one_each && *smallest != *largest)
            return false;
        struct piece {
            std::size_t rank, cores;
        };
        std::vector<piece> pieces;
        counts last; // pieces of ranks that have more than one
        for (std::size_t r = 0; r < wanted_.size(); ++r) {
            std::size_t lacks = wanted_[r];
            for (; lacks > *largest; lacks -= *largest)
                pieces.push_back({r, *largest});
            pieces.push_back({r, lacks});
            last.push_back(lacks);
        }
        std::sort(last.begin(), last.end());
        if (!one_each && last.size() > 1 && last[0] + last[1] <= *largest)
            return false;
        std::vector<std::size_t> seats; // nodes
        for (std::size_t n = 0; n < room_.size(); ++n) {
            std::size_t const count = one_each ? room_[n] / *most : 1;
            if (one_each && room_[n] / *least != count)
                return false;
            seats.insert(seats.end(), count, n);
        }
        if (seats.size() < pieces.size())
            return false;
        std::vector<costs> cost;
        for (piece const& p : pieces) {
            cost.emplace_back();
            for (std::size_t const n : seats)
                cost.back().push_back(static_cast<std::int64_t>(p.cores) * cost_[p.rank][n]);
        }
        std::vector<std::size_t> const taken = least_assignment(cost);
        rating made{pieces.size(), 0};
        shares cores(wanted_.size(), counts(room_.size()));
        for (std::size_t k = 0; k < pieces.size(); ++k) {
            made.cost += cost[k][taken[k]];
            cores[pieces[k].rank][seats[taken[k]]] += pieces[k].cores;
        }
        if (made < best_) {
            best_ = made;
            result_ = std::move(cores);
        }
        return true;
    }

    // Nodes that no rank can tell apart so far.
    using classes = std::vector<std::vector<std::size_t>>;

    classes classes_of_nodes() const
    {
        classes all;
        for (std::size_t n = 0; n < room_.size(); ++n) {
            auto const alike = [&](std::vector<std::size_t> const& c) {
                return room_[c[0]] == room_[n] && std::all_of(cost_.begin(), cost_.end(),
                                                              [&](costs const& from) { return from[c[0]] == from[n]; });
            };
            auto const found = std::find_if(all.begin(), all.end(), alike);
            if (found == all.end())
                all.push_back({n});
            else
                found->push_back(n);
        }
        return all;
    }

    // How many nodes of each class one rank has, and the cost of its cores if no later rank had any. There may be more
    // nodes than it then needs: later ranks may leave it only a part of each.
    struct candidate {
        rating alone;
        rating key; // of the nodes as a set
        counts taken;
    };
    std::vector<candidate> candidates(std::size_t rank, std::size_t most_nodes, classes const& all)
    {
        std::vector<std::size_t> order; // of classes, the nearest first
        for (std::size_t k = 0; k < all.size(); ++k)
            if (usable_[rank][all[k][0]])
                order.push_back(k);
        detail::sort_stably(
            order, [&](std::size_t a, std::size_t b) { return cost_[rank][all[a][0]] < cost_[rank][all[b][0]]; });
        std::vector<candidate> found;
        candidate made{{}, {}, counts(all.size())};
        auto const extend = [&](auto const& self, std::size_t k, std::size_t lacks) -> void {
            if (++work_ > most_work)
                return;
            if (k == order.size()) {
                if (lacks == 0)
                    found.push_back(made);
                return;
            }
            std::vector<std::size_t> const& nodes = all[order[k]];
            std::size_t const room = room_[nodes[0]] - reserved_[nodes[0]];
            std::int64_t const cost = cost_[rank][nodes[0]];
            candidate const before = made;
            for (std::size_t n = 0; n <= nodes.size() && before.alone.nodes + n <= most_nodes; ++n) {
                std::size_t const cores = std::min(lacks, n * room);
                made.taken[order[k]] = n;
                made.alone = {before.alone.nodes + n, before.alone.cost + static_cast<std::int64_t>(cores) * cost};
                made.key = {made.alone.nodes, before.key.cost + static_cast<std::int64_t>(n) * cost};
                self(self, k + 1, lacks - cores);
            }
            made = before;
        };
        extend(extend, 0, wanted_[rank]);
        detail::sort_stably(found, [](candidate const& a, candidate const& b) { return a.alone < b.alone; });
        return found;
    }

    // Selects the nodes of a rank and those after it. `used`: the number of nodes that ranks before it have;
    // `previous`: the key of the last of these.
    void select_nodes(std::size_t rank, std::size_t used, rating previous, classes const& all)
    {
        std::size_t const later = fewest_later_[rank + 1];
        if (used + later > best_.nodes)
            return;
        bool const like_previous = rank > 0 && wanted_[rank] == wanted_[rank - 1] && cost_[rank] == cost_[rank - 1];
        std::vector<bool> const usable = usable_[rank];
        counts const reserved = reserved_;
        for (candidate const& c : candidates(rank, best_.nodes - used - later, all)) {
            if (!complete())
                break;
            std::size_t const now = used + c.alone.nodes;
            if (now + later > best_.nodes || (like_previous && c.key < previous)) // its permutation is tried, too
                continue;
            usable_[rank].assign(room_.size(), false);
            classes split;
            std::size_t room = 0;
            for (std::size_t k = 0; k < all.size(); ++k) {
                auto const end = all[k].begin() + static_cast<std::ptrdiff_t>(c.taken[k]);
                for (auto n = all[k].begin(); n != end; ++n) {
                    usable_[rank][*n] = true;
                    room += room_[*n];
                }
                if (end != all[k].begin())
                    split.emplace_back(all[k].begin(), end);
                if (end != all[k].end())
                    split.emplace_back(end, all[k].end());
            }
            for (std::size_t n = 0; n < room_.size(); ++n)
                if (usable_[rank][n]) {
                    std::size_t const others = room - room_[n];
                    reserved_[n] = reserved[n] + (wanted_[rank] > others ? wanted_[rank] - others : 1);
                }
            restrict_after(rank, best_.nodes - now - later);
            if (std::optional<flow> bound = cheapest(); bound && rating{now + later, bound->cost} < best_) {
                if (rank + 1 < wanted_.size()) {
                    select_nodes(rank + 1, now, c.key, split);
                } else {
                    best_ = {now, bound->cost};
                    result_ = std::move(bound->cores);
                }
            }
            reserved_ = reserved;
        }
        usable_[rank] = usable;
    }

    // Keeps ranks after this one out of nodes whose room is too small for them besides what earlier ranks need there.
    // `spare`: how many more nodes than the fewest these ranks may have.
    void restrict_after(std::size_t rank, std::size_t spare)
    {
        std::size_t const largest = *std::max_element(room_.begin(), room_.end());
        for (std::size_t r = rank + 1; r < wanted_.size(); ++r) {
            std::size_t const others = (fewest_later_[r] - fewest_later_[r + 1] + spare - 1) * largest;
            std::size_t const least = wanted_[r] > others ? wanted_[r] - others : 1;
            for (std::size_t n = 0; n < room_.size(); ++n)
                usable_[r][n] = reserved_[n] + least <= room_[n];
        }
    }

    // The flow of the least cost in which each rank has all its cores, of usable nodes; none where that is impossible.
    // Successive shortest paths, one rank after the other; Bellman-Ford, because returned cores have negative costs.
    std::optional<flow> cheapest()
    {
        std::size_t const ranks = wanted_.size(), nodes = room_.size();
        flow result{0, shares(ranks, counts(nodes))};
        counts left = room_;
        constexpr std::int64_t far = std::numeric_limits<std::int64_t>::max();
        for (std::size_t source = 0; source < ranks; ++source)
            for (std::size_t lacks = wanted_[source]; lacks > 0;) {
                costs of_rank(ranks, far), of_node(nodes, far);
                std::vector<std::size_t> giver(ranks), taker(nodes); // node before a rank, rank before a node
                of_rank[source] = 0;
                for (bool changed = true; changed;) {
                    changed = false;
                    for (std::size_t r = 0; r < ranks; ++r)
                        for (std::size_t n = 0; n < nodes && of_rank[r] != far; ++n)
                            if (usable_[r][n] && of_rank[r] + cost_[r][n] < of_node[n]) {
                                of_node[n] = of_rank[r] + cost_[r][n];
                                taker[n] = r;
                                changed = true;
                            }
                    for (std::size_t r = 0; r < ranks; ++r)
                        for (std::size_t n = 0; n < nodes; ++n)
                            if (result.cores[r][n] != 0 && of_node[n] != far && of_node[n] - cost_[r][n] < of_rank[r]) {
                                of_rank[r] = of_node[n] - cost_[r][n];
                                giver[r] = n;
                                changed = true;
                            }
                    work_ += 2 * ranks * nodes;
                }
                std::size_t sink = nodes;
                for (std::size_t n = 0; n < nodes; ++n)
                    if (left[n] != 0 && of_node[n] != far && (sink == nodes || of_node[n] < of_node[sink]))
                        sink = n;
                if (sink == nodes)
                    return std::nullopt;
                std::size_t amount = std::min(lacks, left[sink]);
                for (std::size_t r = taker[sink]; r != source; r = taker[giver[r]])
                    amount = std::min(amount, result.cores[r][giver[r]]);
                result.cost += static_cast<std::int64_t>(amount) * of_node[sink];
                for (std::size_t n = sink;; n = giver[taker[n]]) {
                    std::size_t const r = taker[n];
                    result.cores[r][n] += amount;
                    if (r == source)
                        break;
                    result.cores[r][giver[r]] -= amount;
                }
                left[sink] -= amount;
                lacks -= amount;
            }
        return result;
    }

    counts room_;
    std::vector<std::size_t> order_; // ranks as the caller counts them
    counts wanted_;
    std::vector<costs> cost_;
    std::vector<std::vector<bool>> usable_; // nodes of each rank
    counts reserved_;                       // cores of each node that ranks cannot do without
    counts fewest_later_;                   // nodes of each rank and those after it, if each had the largest nodes
    rating best_;
    std::optional<shares> result_;
    std::size_t work_ = 0;
};

} // namespace detail

ADAMANT_END_NAMESPACE
