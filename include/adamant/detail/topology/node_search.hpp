// SPDX-License-Identifier: Apache-2.0
// Branch-and-bound search for the NUMA nodes of each rank's optimizer if there are fewer ranks than nodes.
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
// nodes. All ranks must find the same assignment, so a count limits the work, not time.
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

    // `capacity`: cores of each node. `demand`: cores of each rank; their sum is at most the capacity of all nodes.
    // `cost`: of one core of each node for each rank.
    node_search(counts capacity, counts const& demand, std::vector<costs> const& cost)
        : capacity_(std::move(capacity)), usable_(demand.size(), std::vector<bool>(capacity_.size(), true)),
          reserved_(capacity_.size()), fewest_later_(demand.size() + 1)
    {
        // Sorted so that equal ranks are adjacent, and ranks without a preference are last.
        order_.resize(demand.size());
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        detail::sort_stably(order_, [&](std::size_t a, std::size_t b) {
            return std::tie(cost[b], demand[b]) < std::tie(cost[a], demand[a]);
        });
        for (std::size_t const r : order_) {
            demand_.push_back(demand[r]);
            cost_.push_back(cost[r]);
        }
        counts largest = capacity_;
        std::sort(largest.rbegin(), largest.rend());
        for (std::size_t r = demand_.size(); r-- > 0;) {
            std::size_t nodes = 0;
            for (std::size_t sum = 0; sum < demand_[r] && nodes < largest.size(); ++nodes)
                sum += largest[nodes];
            fewest_later_[r] = fewest_later_[r + 1] + nodes;
        }
    }

    // Returns the best assignment if it is better than `known`. If the limit of work ends the search, it is the best
    // assignment so far.
    std::optional<shares> find_better(rating known)
    {
        best_ = known;
        result_.reset();
        work_ = 0;
        if (std::optional<flow> const bound = find_cheapest_flow();
            bound && rating{fewest_later_[0], bound->cost} < best_)
            if (!assign_whole_nodes())
                select_nodes(0, 0, {}, classes_of_nodes());
        if (!result_)
            return std::nullopt;
        shares sorted(order_.size());
        for (std::size_t r = 0; r < order_.size(); ++r)
            sorted[order_[r]] = std::move((*result_)[r]);
        return sorted;
    }

    // Returns whether find_better() searched all assignments.
    [[nodiscard]] bool complete() const { return work_ <= max_work; }

private:
    static constexpr std::size_t max_work =
        1'000'000; // number of edges of flow networks and of candidates; takes milliseconds

    struct flow {
        std::int64_t cost = 0;
        shares cores;
    };
    // Solves the case in which each rank can have its fewest nodes and no node can be shared in more than one way. It
    // is an assignment of pieces: a rank's cores in one node. Returns false in other cases.
    bool assign_whole_nodes()
    {
        auto const [smallest, largest] = std::minmax_element(capacity_.begin(), capacity_.end());
        auto const [least, most] = std::minmax_element(demand_.begin(), demand_.end());
        bool const one_each = fewest_later_[0] == demand_.size();
        if (!one_each && *smallest != *largest)
            return false;
        struct piece {
            std::size_t rank, cores;
        };
        std::vector<piece> pieces;
        counts last; // pieces of ranks that have more than one
        for (std::size_t r = 0; r < demand_.size(); ++r) {
            std::size_t missing = demand_[r];
            for (; missing > *largest; missing -= *largest)
                pieces.push_back({r, *largest});
            pieces.push_back({r, missing});
            last.push_back(missing);
        }
        std::sort(last.begin(), last.end());
        if (!one_each && last.size() > 1 && last[0] + last[1] <= *largest)
            return false;
        std::vector<std::size_t> seats; // nodes
        for (std::size_t n = 0; n < capacity_.size(); ++n) {
            std::size_t const count = one_each ? capacity_[n] / *most : 1;
            if (one_each && capacity_[n] / *least != count)
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
        std::vector<std::size_t> const assignment = least_assignment(cost);
        rating total{pieces.size(), 0};
        shares cores(demand_.size(), counts(capacity_.size()));
        for (std::size_t k = 0; k < pieces.size(); ++k) {
            total.cost += cost[k][assignment[k]];
            cores[pieces[k].rank][seats[assignment[k]]] += pieces[k].cores;
        }
        if (total < best_) {
            best_ = total;
            result_ = std::move(cores);
        }
        return true;
    }

    // Nodes that are equivalent for all ranks so far.
    using classes = std::vector<std::vector<std::size_t>>;

    classes classes_of_nodes() const
    {
        classes all;
        for (std::size_t n = 0; n < capacity_.size(); ++n) {
            auto const is_alike = [&](std::vector<std::size_t> const& c) {
                return capacity_[c[0]] == capacity_[n] &&
                       std::all_of(cost_.begin(), cost_.end(),
                                   [&](costs const& rank_cost) { return rank_cost[c[0]] == rank_cost[n]; });
            };
            auto const match = std::find_if(all.begin(), all.end(), is_alike);
            if (match == all.end())
                all.push_back({n});
            else
                match->push_back(n);
        }
        return all;
    }

    // The number of nodes of each class for one rank, and the cost of its cores if later ranks had none. It may have
    // more nodes than it then needs, because later ranks may use a part of each.
    struct candidate {
        rating alone;
        rating key; // of the nodes as a set
        counts node_counts;
    };
    std::vector<candidate> candidates(std::size_t rank, std::size_t most_nodes, classes const& all)
    {
        std::vector<std::size_t> order; // of classes, the nearest first
        for (std::size_t k = 0; k < all.size(); ++k)
            if (usable_[rank][all[k][0]])
                order.push_back(k);
        detail::sort_stably(
            order, [&](std::size_t a, std::size_t b) { return cost_[rank][all[a][0]] < cost_[rank][all[b][0]]; });
        std::vector<candidate> result;
        candidate current{{}, {}, counts(all.size())};
        auto const extend = [&](auto const& self, std::size_t k, std::size_t missing) -> void {
            if (++work_ > max_work)
                return;
            if (k == order.size()) {
                if (missing == 0)
                    result.push_back(current);
                return;
            }
            std::vector<std::size_t> const& nodes = all[order[k]];
            std::size_t const capacity = capacity_[nodes[0]] - reserved_[nodes[0]];
            std::int64_t const cost = cost_[rank][nodes[0]];
            candidate const base = current;
            for (std::size_t n = 0; n <= nodes.size() && base.alone.nodes + n <= most_nodes; ++n) {
                std::size_t const cores = std::min(missing, n * capacity);
                current.node_counts[order[k]] = n;
                current.alone = {base.alone.nodes + n, base.alone.cost + static_cast<std::int64_t>(cores) * cost};
                current.key = {current.alone.nodes, base.key.cost + static_cast<std::int64_t>(n) * cost};
                self(self, k + 1, missing - cores);
            }
            current = base;
        };
        extend(extend, 0, demand_[rank]);
        detail::sort_stably(result, [](candidate const& a, candidate const& b) { return a.alone < b.alone; });
        return result;
    }

    // Selects the nodes of a rank and of later ranks. `used`: the number of nodes of earlier ranks; `previous`: the key
    // of the previous rank.
    void select_nodes(std::size_t rank, std::size_t used, rating previous, classes const& all)
    {
        std::size_t const later = fewest_later_[rank + 1];
        if (used + later > best_.nodes)
            return;
        bool const like_previous = rank > 0 && demand_[rank] == demand_[rank - 1] && cost_[rank] == cost_[rank - 1];
        std::vector<bool> const usable = usable_[rank];
        counts const reserved = reserved_;
        for (candidate const& c : candidates(rank, best_.nodes - used - later, all)) {
            if (!complete())
                break;
            std::size_t const nodes_so_far = used + c.alone.nodes;
            if (nodes_so_far + later > best_.nodes ||
                (like_previous && c.key < previous)) // a permutation of another candidate
                continue;
            usable_[rank].assign(capacity_.size(), false);
            classes split;
            std::size_t capacity = 0;
            for (std::size_t k = 0; k < all.size(); ++k) {
                auto const end = all[k].begin() + static_cast<std::ptrdiff_t>(c.node_counts[k]);
                for (auto n = all[k].begin(); n != end; ++n) {
                    usable_[rank][*n] = true;
                    capacity += capacity_[*n];
                }
                if (end != all[k].begin())
                    split.emplace_back(all[k].begin(), end);
                if (end != all[k].end())
                    split.emplace_back(end, all[k].end());
            }
            for (std::size_t n = 0; n < capacity_.size(); ++n)
                if (usable_[rank][n]) {
                    std::size_t const other_capacity = capacity - capacity_[n];
                    reserved_[n] = reserved[n] + (demand_[rank] > other_capacity ? demand_[rank] - other_capacity : 1);
                }
            restrict_after(rank, best_.nodes - nodes_so_far - later);
            if (std::optional<flow> bound = find_cheapest_flow();
                bound && rating{nodes_so_far + later, bound->cost} < best_) {
                if (rank + 1 < demand_.size()) {
                    select_nodes(rank + 1, nodes_so_far, c.key, split);
                } else {
                    best_ = {nodes_so_far, bound->cost};
                    result_ = std::move(bound->cores);
                }
            }
            reserved_ = reserved;
        }
        usable_[rank] = usable;
    }

    // Excludes nodes for later ranks whose capacity is too small for them besides the needs of earlier ranks. `spare`:
    // the number of nodes that these ranks may have beyond the fewest.
    void restrict_after(std::size_t rank, std::size_t spare)
    {
        std::size_t const largest = *std::max_element(capacity_.begin(), capacity_.end());
        for (std::size_t r = rank + 1; r < demand_.size(); ++r) {
            std::size_t const other_capacity = (fewest_later_[r] - fewest_later_[r + 1] + spare - 1) * largest;
            std::size_t const least = demand_[r] > other_capacity ? demand_[r] - other_capacity : 1;
            for (std::size_t n = 0; n < capacity_.size(); ++n)
                usable_[r][n] = reserved_[n] + least <= capacity_[n];
        }
    }

    // Returns the flow of the least cost that gives each rank all its cores in usable nodes, or none if that is
    // impossible. Successive shortest paths, one rank after the other, by Bellman-Ford, because returned cores have
    // negative costs.
    std::optional<flow> find_cheapest_flow()
    {
        std::size_t const ranks = demand_.size(), nodes = capacity_.size();
        flow result{0, shares(ranks, counts(nodes))};
        counts free_cores = capacity_;
        constexpr std::int64_t unreachable = std::numeric_limits<std::int64_t>::max();
        for (std::size_t source = 0; source < ranks; ++source)
            for (std::size_t missing = demand_[source]; missing > 0;) {
                costs rank_cost(ranks, unreachable), node_cost(nodes, unreachable);
                std::vector<std::size_t> node_before(ranks), rank_before(nodes); // on the shortest path
                rank_cost[source] = 0;
                for (bool changed = true; changed;) {
                    changed = false;
                    for (std::size_t r = 0; r < ranks; ++r)
                        for (std::size_t n = 0; n < nodes && rank_cost[r] != unreachable; ++n)
                            if (usable_[r][n] && rank_cost[r] + cost_[r][n] < node_cost[n]) {
                                node_cost[n] = rank_cost[r] + cost_[r][n];
                                rank_before[n] = r;
                                changed = true;
                            }
                    for (std::size_t r = 0; r < ranks; ++r)
                        for (std::size_t n = 0; n < nodes; ++n)
                            if (result.cores[r][n] != 0 && node_cost[n] != unreachable &&
                                node_cost[n] - cost_[r][n] < rank_cost[r]) {
                                rank_cost[r] = node_cost[n] - cost_[r][n];
                                node_before[r] = n;
                                changed = true;
                            }
                    work_ += 2 * ranks * nodes;
                }
                std::size_t sink = nodes;
                for (std::size_t n = 0; n < nodes; ++n)
                    if (free_cores[n] != 0 && node_cost[n] != unreachable &&
                        (sink == nodes || node_cost[n] < node_cost[sink]))
                        sink = n;
                if (sink == nodes)
                    return std::nullopt;
                std::size_t amount = std::min(missing, free_cores[sink]);
                for (std::size_t r = rank_before[sink]; r != source; r = rank_before[node_before[r]])
                    amount = std::min(amount, result.cores[r][node_before[r]]);
                result.cost += static_cast<std::int64_t>(amount) * node_cost[sink];
                for (std::size_t n = sink;; n = node_before[rank_before[n]]) {
                    std::size_t const r = rank_before[n];
                    result.cores[r][n] += amount;
                    if (r == source)
                        break;
                    result.cores[r][node_before[r]] -= amount;
                }
                free_cores[sink] -= amount;
                missing -= amount;
            }
        return result;
    }

    counts capacity_;
    std::vector<std::size_t> order_; // the caller's rank of each rank here
    counts demand_;
    std::vector<costs> cost_;
    std::vector<std::vector<bool>> usable_; // nodes of each rank
    counts reserved_;                       // cores of each node that ranks are certain to need
    counts fewest_later_;                   // lower bound of the nodes of each rank and all later ones
    rating best_;
    std::optional<shares> result_;
    std::size_t work_ = 0;
};

} // namespace detail

ADAMANT_END_NAMESPACE
