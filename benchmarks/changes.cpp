// SPDX-License-Identifier: Apache-2.0
// What it costs to track which weights change, and to collect them.
//
//   changes/step/TYPES/elems:N/threads:T     a step that tracks changes, beside one that does not
//   changes/collect/TYPE/permille:P/elems:N/threads:T
//
// The limit of collecting reads all bits and, by known indices, the weights that changed. "writes" does the same and
// writes what it reads: without finding anything, it is what collecting has to do.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <adamant/changes.hpp>
#include <adamant/step.hpp>

#include "arrays.hpp"
#include "rows.hpp"

namespace bench {

namespace {

using race::contender;
using race::part_in_race;

template <class Shard>
void tracked_step(benchmark::State& state, executor const& cpu, std::size_t n)
{
    arrays const a(Shard::dtypes, n);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, 0, n);
    adamant::buffer<std::uint64_t> bits(adamant::changed_words(n)); // huge pages, as the arrays
    adamant::any_shard const plain = shard;
    adamant::any_shard const tracked = plain.track({bits.data(), bits.size()});
    adamant::coefficients const c = adamw();
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "tracked", "", [&] { adamant::step(cpu, tracked, c); }});
    contenders.push_back({part_in_race::limit, "plain", "", [&] { adamant::step(cpu, plain, c); }});
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, moving(n, Shard::bytes_per_element()));
}

// A share of the weights, in thousandths, at random places.
template <class Weight>
void collect(benchmark::State& state, executor const& cpu, std::size_t n, unsigned permille)
{
    arrays const a({adamant::dtype_of<Weight>}, n);
    cpu.for_each_owned_slice(n, [&](slice part) {
        fill_array<Weight>(a, 0, part, [](std::uint32_t random) { return adamant::narrow<Weight>(bell(random)); });
    });
    adamant::buffer<std::uint64_t> words(adamant::changed_words(n));
    std::vector<std::uint32_t> known;
    for (std::size_t i = 0; i < n; ++i)
        if (random_bits(static_cast<std::uint32_t>(i) ^ 0x5bd1e995u) % 1000 < permille) {
            words.data()[i / 64] |= std::uint64_t{1} << i % 64;
            known.push_back(static_cast<std::uint32_t>(i));
        }
    std::vector<std::uint32_t> indices(known.size());
    std::vector<Weight> values(known.size());
    Weight const* const weights = a.get<Weight const>(0);
    adamant::tracked_weights const from({words.data(), words.size()}, n, weights, adamant::dtype_of<Weight>);
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "changed_weights", "", [&] {
                              require(changed_weights(cpu, from, indices, values.data()) == known.size(),
                                      "all changes are collected");
                          }});
    // Reads the bits, and calls the function with the range of known indices of each thread.
    auto const read_all = [&](auto const& use) {
        cpu.for_each_owned_slice(n, [&](slice part) {
            std::uint64_t sum = 0;
            for (std::size_t w = part.begin / 64; w < (part.end + 63) / 64; ++w)
                sum += words.data()[w];
            benchmark::DoNotOptimize(sum);
            auto const begin = std::lower_bound(known.begin(), known.end(), part.begin);
            auto const end = std::lower_bound(begin, known.end(), part.end);
            use(static_cast<std::size_t>(begin - known.begin()), static_cast<std::size_t>(end - known.begin()));
        });
    };
    contenders.push_back({part_in_race::limit, "reads", "", [&] {
                              read_all([&](std::size_t begin, std::size_t end) {
                                  using bits = std::conditional_t<sizeof(Weight) == 2, std::uint16_t, std::uint32_t>;
                                  std::uint64_t sum = 0;
                                  for (std::size_t i = begin; i < end; ++i)
                                      sum += std::bit_cast<bits>(weights[known[i]]);
                                  benchmark::DoNotOptimize(sum);
                              });
                          }});
    contenders.push_back({part_in_race::aside, "writes", "", [&] {
                              read_all([&](std::size_t begin, std::size_t end) {
                                  for (std::size_t i = begin; i < end; ++i) {
                                      indices[i] = known[i];
                                      values[i] = weights[known[i]];
                                  }
                              });
                          }});
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, {static_cast<double>(n), static_cast<double>(n) / 8});
}

} // namespace

void add_changes(setup const& given)
{
    for_each_types([&]<class Shard>(std::string const& types) {
        for_each_size(given, sizes(given.chosen, memory_bytes(Shard::dtypes)), [&](executor const& cpu, std::size_t n) {
            add_row("changes/step/" + types + "/" + row_name(cpu, n), rounds_for(given.chosen, n),
                    [&cpu, n](benchmark::State& state) { tracked_step<Shard>(state, cpu, n); });
        });
    });
    auto const add_collect = [&]<class Weight>(std::string const& type) {
        auto const add = [&](executor const& cpu, std::size_t n, unsigned permille) {
            add_row("changes/collect/" + type + "/permille:" + std::to_string(permille) + "/" + row_name(cpu, n),
                    rounds_for(given.chosen, n),
                    [&cpu, n, permille](benchmark::State& state) { collect<Weight>(state, cpu, n, permille); });
        };
        for (executor const& cpu : given.cpus) {
            for (unsigned const permille : {1u, 10u, 100u, 900u}) // many last-level caches hold the lines that are read
                add(cpu, given.chosen.quick ? std::size_t{1} << 22 : std::size_t{1} << 25, permille);
            add(cpu, sizes(given.chosen, sizeof(Weight)).back(), 10);
        }
    };
    add_collect.template operator()<bfloat16>("bf16");
    add_collect.template operator()<float>("f32");
}

} // namespace bench
