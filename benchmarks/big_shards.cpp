// SPDX-License-Identifier: Apache-2.0
// One step over one shard, of every types, from a few elements in the first cache to many out of all: against loops
// that move the same bytes and do no arithmetic, and in cache against the divider too, for there is no step without a
// square root and a division.
//
//   big_shards/TYPES/elems:N/threads:T/pages:4K or 2M

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

template <class Shard>
void big_shard(benchmark::State& state, executor const& cpu, std::size_t n, page_kind pages)
{
    arrays const a(Shard::dtypes, n, pages);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, 0, n);
    adamant::coefficients const c = adamw();

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", "", [&] { adamant::step(cpu, shard, c); }});
    // Beside storage of fewer bytes, what it takes the place of; and beside bfloat16 and 8 bits, other ways to round.
    constexpr bool in_groups = std::is_same_v<typename Shard::exp_avg_type, quantized8>;
    std::optional<arrays> of_mixed;
    adamant::coefficients nearest = c;
    nearest.rounding = {};
    adamant::coefficients stochastic = c;
    stochastic.rounding.param = true;
    if constexpr (has_split_param(Shard::dtypes) || in_groups) {
        of_mixed.emplace(mixed::dtypes, n, pages);
        fill<mixed>(cpu, *of_mixed, n, content::ordinary);
        contenders.push_back(
            {part_in_race::aside, "mixed", "", [&] { adamant::step(cpu, shard_of<mixed>(*of_mixed, 0, n), c); }});
    }
    if constexpr (std::is_same_v<Shard, bf16> || in_groups)
        contenders.push_back({part_in_race::aside, "nearest", "", [&] { adamant::step(cpu, shard, nearest); }});
    if constexpr (std::is_same_v<Shard, bf16>) {
        contenders.push_back({part_in_race::aside, "chance", "", [&] { adamant::step(cpu, shard, stochastic); }});
    }
    add_limits<Shard>(contenders, cpu, a, n);
    add_moving_dividing<Shard>(contenders, cpu, a, n);
    bool const has_openmp = add_plain<Shard>(contenders, cpu, a, n, c) && cpu.threads() > 1;
    double const huge = a.huge_share();
    std::string note;
    if (pages == page_kind::transparent && huge < 0.9)
        note = "only " + std::to_string(std::lround(100 * huge)) + "% in huge pages";
    race::run(state, contenders, {repeats_for(n), has_openmp ? race::pause_after_openmp : race::no_pause});
    report(state, contenders, moving(n, Shard::bytes_per_element()), note);
}

} // namespace

void add_big_shards(setup const& given)
{
    for_each_types([&]<class Shard>(std::string const& types) {
        std::vector<std::size_t> const all = sizes(given.chosen, memory_bytes(Shard::dtypes));
        for_each_size(given, all, [&](executor const& cpu, std::size_t n) {
            for (page_kind const pages : {page_kind::normal, page_kind::transparent}) {
                // What pages cost is seen out of cache.
                if (pages == page_kind::normal && (n != all.back() || given.chosen.quick))
                    continue;
                add_row("big_shards/" + types + "/" + row_name(cpu, n) +
                            (pages == page_kind::normal ? "/pages:4K" : "/pages:2M"),
                        rounds_for(given.chosen, n),
                        [&cpu, n, pages](benchmark::State& state) { big_shard<Shard>(state, cpu, n, pages); });
            }
        });
    });
}

} // namespace bench
