// SPDX-License-Identifier: Apache-2.0
// Whether ranks could be nearer to their GPUs than select_cores() puts them: all assignments of small machines, and for
// larger ones every exchange between two ranks and every idle core.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>

#include "catch.hpp"

using namespace adamant;

namespace {

// Packages of NUMA nodes of one size. GPU i is at node gpu_nodes[i].
machine server(unsigned packages, unsigned nodes_each, unsigned cores_each, std::vector<unsigned> const& gpu_nodes)
{
    machine m;
    m.source = std::to_string(packages) + " packages of " + std::to_string(nodes_each) + " nodes of " +
               std::to_string(cores_each) + " cores";
    m.packages.resize(packages);
    for (unsigned n = 0; n < packages * nodes_each; ++n) {
        m.nodes.push_back({.os_index = n, .bytes = 1, .pus = {}});
        for (unsigned c = 0; c < cores_each; ++c) {
            auto const pu = static_cast<unsigned>(m.cores.size());
            m.cores.push_back({.pus = {pu}, .package = n / nodes_each, .node = n});
            m.nodes[n].pus.insert(pu);
            m.packages[n / nodes_each].pus.insert(pu);
        }
    }
    for (unsigned g = 0; g < gpu_nodes.size(); ++g) {
        char address[16];
        std::snprintf(address, sizeof address, "0000:%02x:00.0", g);
        m.gpus.push_back({.pci = address, .name = "", .pus = m.nodes[gpu_nodes[g]].pus});
    }
    m.allowed = m.pus();
    return m;
}

machine dgx_a100()
{
    return server(2, 4, 16, {3, 3, 1, 1, 7, 7, 5, 5});
}

using cores = std::vector<unsigned>;

// The usable cores of each node.
std::vector<cores> cores_of_nodes(machine const& m)
{
    std::vector<cores> all(m.nodes.size());
    for (unsigned c = 0; c < m.cores.size(); ++c)
        if (m.cores[c].pus.intersects(m.allowed))
            all.at(m.cores[c].node).push_back(c);
    return all;
}
std::size_t count_nodes(machine const& m)
{
    auto const all = cores_of_nodes(m);
    return all.size() - static_cast<std::size_t>(std::count(all.begin(), all.end(), cores{}));
}

// A sum of fractions with a common denominator, so that comparisons are exact.
class scored {
public:
    scored(machine const& m, core_request const& r, std::vector<rank_cores> const& all) : m_(m), r_(r)
    {
        for (rank_cores const& one : all) {
            parts_.push_back(cores_of(one.adam_pus | one.host_pus));
            optimizers_.push_back(cores_of(one.adam_pus));
            adam_.push_back(one.adam_pus.size());
            unit_ = std::lcm(unit_, one.adam_pus.size());
            given_ |= one.adam_pus | one.host_pus;
        }
    }

    // 0 near the rank's GPU, 1 in its package, 2 elsewhere; 0 everywhere for a rank that has none.
    [[nodiscard]] std::size_t distance(std::size_t rank, unsigned core) const
    {
        if (r_.gpus[rank].empty())
            return 0;
        pu_set const& near = m_.gpus[std::stoul(r_.gpus[rank])].pus;
        if (near.intersects(m_.cores[core].pus))
            return 0;
        return m_.packages[m_.cores[core].package].pus.intersects(near) ? 1 : 2;
    }
    // Nodes and mean distance of an optimizer.
    using value = std::pair<std::size_t, std::size_t>;
    // The fewest nodes with `adam` cores of a part, of these the nearest: all sets of nodes.
    [[nodiscard]] value value_of(std::size_t rank, cores const& part, std::size_t adam) const
    {
        std::map<unsigned, std::size_t> counts;
        for (unsigned const c : part)
            ++counts[m_.cores[c].node];
        std::vector<std::pair<std::size_t, std::size_t>> nodes; // distance and cores
        for (auto const& [node, count] : counts)
            nodes.emplace_back(distance(rank, nodes_[node].front()), count);
        std::sort(nodes.begin(), nodes.end());
        value best{~std::size_t{0}, 0};
        for (std::size_t set = 1; set < std::size_t{1} << nodes.size(); ++set) {
            value made{0, 0};
            std::size_t lacks = adam;
            for (std::size_t n = 0; n < nodes.size(); ++n)
                if ((set >> n & 1) != 0) {
                    std::size_t const count = std::min(lacks, nodes[n].second);
                    lacks -= count;
                    made.first += 1;
                    made.second += count * nodes[n].first * (unit_ / adam);
                }
            if (lacks == 0)
                best = std::min(best, made);
        }
        return best;
    }

    // The sums over the optimizers as they are.
    [[nodiscard]] value total() const
    {
        value sum{0, 0};
        for (std::size_t r = 0; r < parts_.size(); ++r) {
            std::set<unsigned> nodes;
            for (unsigned const c : optimizers_[r]) {
                nodes.insert(m_.cores[c].node);
                sum.second += distance(r, c) * (unit_ / adam_[r]);
            }
            sum.first += nodes.size();
        }
        return sum;
    }
    [[nodiscard]] std::size_t unit() const { return unit_; }
    [[nodiscard]] std::vector<cores> const& parts() const { return parts_; }
    [[nodiscard]] std::vector<std::size_t> const& adam() const { return adam_; }

    // Ranks a and b exchange all they have, or what they have in a node each: does that help one and harm none?
    [[nodiscard]] std::string exchange() const
    {
        for (std::size_t a = 0; a < parts_.size(); ++a)
            for (std::size_t b = 0; b < a; ++b) {
                if (value_of(a, parts_[b], adam_[b]).second + value_of(b, parts_[a], adam_[a]).second <
                    value_of(a, parts_[a], adam_[a]).second + value_of(b, parts_[b], adam_[b]).second)
                    return "ranks " + std::to_string(b) + " and " + std::to_string(a) + " should exchange all";
                for (unsigned i = 0; i < m_.nodes.size(); ++i)
                    for (unsigned j = 0; j < m_.nodes.size(); ++j) {
                        auto const [from_a, rest_a] = taken(parts_[a], i);
                        auto const [from_b, rest_b] = taken(parts_[b], j);
                        std::size_t const count = std::min(from_a.size(), from_b.size());
                        if (i == j || count == 0)
                            continue;
                        auto const less = [&](cores rest, cores const& kept, cores const& got) {
                            rest.insert(rest.end(), kept.begin() + static_cast<std::ptrdiff_t>(count), kept.end());
                            rest.insert(rest.end(), got.begin(), got.begin() + static_cast<std::ptrdiff_t>(count));
                            return rest;
                        };
                        if (helps(a, less(rest_a, from_a, from_b), b, less(rest_b, from_b, from_a)))
                            return "ranks " + std::to_string(a) + " and " + std::to_string(b) +
                                   " should exchange cores of nodes " + std::to_string(i) + " and " + std::to_string(j);
                    }
            }
        return {};
    }
    // Cores that nobody has, in a node with room for a rank.
    [[nodiscard]] std::string idle() const
    {
        for (cores const& node : nodes_)
            for (unsigned const c : node)
                if (!given_.intersects(m_.cores[c].pus))
                    return "core " + std::to_string(c) + " is idle";
        return {};
    }
    // How many ranks have each node, where each rank has one.
    [[nodiscard]] std::vector<std::size_t> ranks_of_nodes() const
    {
        std::vector<std::size_t> counts(m_.nodes.size());
        for (cores const& part : parts_)
            ++counts[m_.cores[part[0]].node];
        return counts;
    }

private:
    // Whether one of two ranks is better off with another part, and none is worse off.
    bool helps(std::size_t a, cores const& new_a, std::size_t b, cores const& new_b) const
    {
        value const is_a = value_of(a, new_a, adam_[a]), was_a = value_of(a, parts_[a], adam_[a]);
        value const is_b = value_of(b, new_b, adam_[b]), was_b = value_of(b, parts_[b], adam_[b]);
        return is_a <= was_a && is_b <= was_b && (is_a < was_a || is_b < was_b);
    }
    cores cores_of(pu_set const& pus) const
    {
        cores all;
        for (unsigned c = 0; c < m_.cores.size(); ++c)
            if (m_.cores[c].pus.intersects(pus))
                all.push_back(c);
        return all;
    }
    std::pair<cores, cores> taken(cores const& part, unsigned node) const
    {
        std::pair<cores, cores> result;
        for (unsigned const c : part)
            (m_.cores[c].node == node ? result.first : result.second).push_back(c);
        return result;
    }

    machine const& m_;
    core_request const& r_;
    std::vector<cores> parts_;
    std::vector<cores> optimizers_;
    std::vector<cores> nodes_ = cores_of_nodes(m_);
    std::vector<std::size_t> adam_; // their numbers
    std::size_t unit_ = 1;
    pu_set given_;
};

std::string shown(machine const& m, core_request const& r, std::vector<rank_cores> const& all)
{
    std::string text = m.source + "; --ranks " + std::to_string(r.ranks) + " --gpu ";
    for (std::string const& g : r.gpus)
        text += g + ",";
    for (rank_cores const& one : all)
        text += "\n  " + to_list(one.adam_pus) + " | " + to_list(one.host_pus) + " | " + one.why;
    return text;
}

// The least sum of distances of all assignments of ranks to nodes in which nodes have equally many, give or take one.
std::size_t least_of_homes(machine const& m, scored const& s, unsigned ranks)
{
    std::vector<std::vector<std::size_t>> cost(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
        for (topology::numa_node const& node : m.nodes)
            cost[r].push_back(s.distance(r, node.pus.front()) * s.unit());
    std::vector<std::size_t> load(m.nodes.size());
    std::size_t best = ~std::size_t{0};
    std::size_t const low = ranks / load.size(), high = (ranks + load.size() - 1) / load.size();
    auto const go = [&](auto const& self, std::size_t r, std::size_t sum) -> void {
        if (sum >= best)
            return;
        if (r == ranks) {
            if (*std::min_element(load.begin(), load.end()) >= low)
                best = sum;
            return;
        }
        for (std::size_t n = 0; n < load.size(); ++n)
            if (load[n] < high) {
                ++load[n];
                self(self, r + 1, sum + cost[r][n]);
                --load[n];
            }
    };
    go(go, 0, 0);
    return best;
}

// The fewest nodes of optimizers, then the least sum of distances, of all ways to give optimizers cores of nodes, as
// many as they have now. The hosts have the rest. None where that takes more than `steps`.
std::optional<scored::value> least_of_shares(machine const& m, scored const& s, std::size_t steps)
{
    std::size_t const ranks = s.parts().size(), nodes = m.nodes.size();
    std::vector<cores> const of_node = cores_of_nodes(m);
    std::vector<std::size_t> left, fewest_later(ranks + 1);
    for (cores const& node : of_node)
        left.push_back(node.size());
    std::size_t const largest = *std::max_element(left.begin(), left.end());
    for (std::size_t r = ranks; r-- > 0;)
        fewest_later[r] = fewest_later[r + 1] + (s.adam()[r] + largest - 1) / largest;
    scored::value best{~std::size_t{0}, 0};
    auto const go = [&](auto const& self, std::size_t r, std::size_t n, std::size_t lacks, scored::value sum) -> void {
        if (steps == 0 || scored::value{sum.first + fewest_later[r + 1], sum.second} >= best)
            return;
        --steps;
        if (lacks == 0 && r + 1 == ranks) {
            best = sum;
            return;
        }
        if (lacks == 0)
            return self(self, r + 1, 0, s.adam()[r + 1], sum);
        if (n == nodes)
            return;
        std::size_t const each = left[n] == 0 ? 0 : s.distance(r, of_node[n].front()) * (s.unit() / s.adam()[r]);
        for (std::size_t take = std::min(lacks, left[n]) + 1; take-- > 0;) {
            left[n] -= take;
            self(self, r, n + 1, lacks - take, {sum.first + (take != 0), sum.second + take * each});
            left[n] += take;
        }
    };
    go(go, 0, 0, s.adam()[0], {0, 0});
    return steps == 0 ? std::nullopt : std::optional(best);
}

struct tally {
    std::size_t tried = 0, compared = 0, exchanges = 0, idle = 0, worse = 0, uneven = 0;
    std::string first; // that went wrong
};

core_request some_request(machine const& m, unsigned ranks, test::random_bits& random)
{
    core_request r;
    r.ranks = ranks;
    if (random.below(3) == 0)
        r.cpuadam_cores_perc = static_cast<double>(1 + random.below(100)) / 100;
    bool const some_without = random.below(2) == 0;
    for (unsigned rank = 0; rank < ranks; ++rank)
        r.gpus.push_back(some_without && random.below(4) == 0 ? "" : std::to_string(random.below(m.gpus.size())));
    return r;
}

void judge(machine const& m, core_request const& r, bool all_assignments, tally& t)
{
    auto const all = select_cores(m, r);
    scored const s(m, r, all);
    ++t.tried;
    auto const wrong = [&](std::size_t& count, std::string const& what) {
        if (what.empty())
            return;
        ++count;
        if (t.first.empty())
            t.first = what + ": " + shown(m, r, all);
    };
    wrong(t.exchanges, s.exchange());
    wrong(t.idle, s.idle());
    if (r.ranks >= count_nodes(m)) {
        auto const counts = s.ranks_of_nodes();
        auto const [low, high] = std::minmax_element(counts.begin(), counts.end());
        wrong(t.uneven, *high - *low > 1 ? "ranks are spread unevenly over nodes" : "");
        if (all_assignments) {
            std::size_t const least = least_of_homes(m, s, r.ranks);
            std::size_t const ours = s.total().second;
            ++t.compared;
            wrong(t.worse, ours > least
                               ? "distance " + std::to_string(ours) + " where " + std::to_string(least) + " is possible"
                               : "");
        }
    } else if (all_assignments) {
        auto const best = least_of_shares(m, s, 200'000);
        if (!best)
            return;
        auto const [nodes, least] = s.total();
        ++t.compared;
        wrong(t.worse, s.total() > *best
                           ? std::to_string(nodes) + " nodes at distance " + std::to_string(least) + " where " +
                                 std::to_string(best->first) + " at " + std::to_string(best->second) + " are possible"
                           : "");
    }
}

void check(tally const& t)
{
    INFO(t.first);
    CHECK(t.exchanges == 0);
    CHECK(t.idle == 0);
    CHECK(t.uneven == 0);
    CHECK(t.worse == 0);
}

} // namespace

TEST_CASE("no assignment of ranks to the nodes of small machines is better")
{
    std::vector<machine> const machines = {server(2, 1, 12, {0, 0, 1, 1}),    server(1, 4, 12, {0, 1, 3}),
                                           server(2, 2, 12, {1, 1, 3, 3}),    server(4, 1, 12, {0, 1, 2, 3}),
                                           server(2, 3, 12, {0, 0, 2, 3, 5}), server(3, 2, 12, {0, 1, 1, 4}),
                                           server(2, 2, 12, {0, 0, 0, 0})};
    test::random_bits random(7);
    tally t;
    for (int i = 0; i < 100; ++i)
        for (machine const& m : machines) {
            auto const nodes = static_cast<unsigned>(m.nodes.size());
            judge(m, some_request(m, nodes + static_cast<unsigned>(random.below(3)), random), true, t);
        }
    check(t);
}

namespace {

// Without all but the first cores of each node.
machine with_cores(machine m, std::vector<unsigned> const& of_nodes)
{
    m.source += ", not all of them allowed";
    auto const all = cores_of_nodes(m);
    for (unsigned n = 0; n < of_nodes.size(); ++n)
        for (std::size_t k = of_nodes[n]; k < all[n].size(); ++k)
            m.allowed -= m.cores[all[n][k]].pus;
    return m;
}

// A machine of the folder, which has no GPUs, with one at each node.
machine with_gpus(std::string const& file)
{
    machine m = machine_from_xml(std::string(ADAMANT_TOPOLOGIES "/") + file);
    auto const all = cores_of_nodes(m);
    for (unsigned n = 0; n < all.size(); ++n)
        if (!all[n].empty())
            m.gpus.push_back({.pci = std::to_string(n), .name = "", .pus = m.nodes[n].pus});
    return m;
}

// Machines with fewer ranks than nodes, from two ranks on.
void judge_few_ranks(std::vector<machine> const& machines, int runs, std::uint64_t seed, tally& t)
{
    test::random_bits random(seed);
    for (int i = 0; i < runs; ++i)
        for (machine const& m : machines) {
            auto const ranks = 2 + static_cast<unsigned>(random.below(count_nodes(m) - 2));
            judge(m, some_request(m, ranks, random), true, t);
        }
}

std::vector<machine> machines_of_few_ranks()
{
    return {server(1, 3, 4, {0, 2}),
            server(3, 1, 4, {0, 1, 2}),
            server(2, 2, 3, {0, 1, 3}),
            server(2, 2, 4, {1, 1, 3, 3}),
            server(4, 1, 3, {0, 1, 2, 3}),
            server(2, 2, 5, {0, 1, 2, 3}),
            server(1, 5, 2, {0, 1, 2, 3}),
            server(2, 3, 2, {0, 1, 3, 5}),
            server(3, 2, 2, {0, 1, 3, 5}),
            server(2, 3, 3, {0, 1, 3, 5}),
            with_cores(server(2, 2, 5, {0, 1, 2, 3}), {5, 4, 3, 5}),
            with_cores(server(2, 3, 4, {0, 1, 3, 5}), {4, 3, 4, 2, 4, 4}),
            with_cores(server(2, 3, 4, {0, 1, 3, 5}), {4, 1, 2, 3, 2, 4})};
}
// Of these, the full search is affordable for some requests.
std::vector<machine> large_machines_of_few_ranks()
{
    return {dgx_a100(),
            server(4, 1, 72, {0, 1, 2, 3}),
            server(2, 3, 24, {0, 2, 3, 5}),
            with_cores(server(2, 2, 24, {0, 1, 3}), {23, 24, 22, 24}),
            with_cores(dgx_a100(), {15, 16, 16, 16, 16, 16, 15, 16}),
            with_gpus("128arm-2pa2n8cluster4co.xml"),
            with_gpus("48amd64-4pa2n6c-sparse.xml")};
}

} // namespace

TEST_CASE("no way to share the nodes of small machines out to fewer ranks is better")
{
    tally t;
    judge_few_ranks(machines_of_few_ranks(), 25, 8, t);
    check(t);
    CHECK(t.compared == t.tried);
}

TEST_CASE("no way to share the nodes of large machines out to fewer ranks is better")
{
    tally t;
    judge_few_ranks(large_machines_of_few_ranks(), 8, 10, t);
    check(t);
    CHECK(t.compared > t.tried / 4);
}

TEST_CASE("no way to share nodes out to fewer ranks is better, in many runs", "[slow]")
{
    tally t;
    for (std::uint64_t seed = 100; seed < 100 + test::repeats(1); ++seed) {
        judge_few_ranks(machines_of_few_ranks(), 20, seed, t);
        judge_few_ranks(large_machines_of_few_ranks(), 8, seed, t);
    }
    check(t);
    CHECK(t.compared > t.tried / 2);
}

TEST_CASE("no exchange and no idle core helps a rank of a large machine")
{
    std::vector<machine> const machines = {dgx_a100(), server(4, 1, 72, {0, 1, 2, 3}), server(2, 2, 32, {0, 1, 2, 3}),
                                           server(2, 3, 24, {0, 2, 3, 5}), server(2, 4, 16, {0, 0, 0, 0, 0, 0, 0, 0})};
    test::random_bits random(9);
    tally t;
    for (int i = 0; i < 12 * static_cast<int>(test::scale()); ++i)
        for (machine const& m : machines)
            for (int const more : {-3, -2, -1, 0, 0, 1, 2, 4}) {
                int const ranks = static_cast<int>(m.nodes.size()) + more;
                judge(m, some_request(m, static_cast<unsigned>(std::max(ranks, 1)), random), false, t);
            }
    check(t);
}

TEST_CASE("ranks that share GPUs of a DGX A100 in NPS4 have a node each, as near as can be")
{
    tally t;
    std::vector<std::string> const gpus = {"5", "7", "6", "2", "4", "5", "2", "7"};
    for (double const share : {0.5, 0.75, 1.0}) {
        core_request r;
        r.cpuadam_cores_perc = share;
        for (unsigned ranks = 2; ranks <= 8; ++ranks) {
            r.ranks = ranks;
            r.gpus.assign(gpus.begin(), gpus.begin() + ranks);
            judge(dgx_a100(), r, true, t);
        }
        node_set nodes;
        for (rank_cores const& one : select_cores(dgx_a100(), r))
            nodes = nodes | one.numa_nodes;
        CHECK(nodes.size() == 8);
    }
    check(t);
}
