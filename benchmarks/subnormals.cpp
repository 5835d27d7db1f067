// SPDX-License-Identifier: Apache-2.0
// What unusual values cost: a step over them against one over ordinary data, and against the limit.
//
//   subnormals/CONTENT/TYPES/elems:N/threads:T
//
// subnormal: every array full of them. idle: gradient and first moment zero. fading: no gradient, and first moments
// spread evenly between 2^-126 and 2^-50: too small to move a param, and down to where they are flushed. All in the
// same arrays, filled in anew before each step: it would otherwise find what an earlier one has flushed.

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

template <class Shard>
void other_content(benchmark::State& state, executor const& cpu, std::size_t n, content what, std::string const& name)
{
    arrays const a(Shard::dtypes, n);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, 0, n);
    adamant::coefficients const c = adamw();
    auto const step = [&] { adamant::step(cpu, shard, c); };

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, name, "", step, [&] { fill<Shard>(cpu, a, n, what); }});
    contenders.push_back(
        {part_in_race::aside, "ordinary", "", step, [&] { fill<Shard>(cpu, a, n, content::ordinary); }});
    add_limits<Shard>(contenders, cpu, a, n);
    race::run(state, contenders);
    report(state, contenders, moving(n, Shard::bytes_per_element()));
}

} // namespace

void add_subnormals(setup const& given)
{
    for (auto const& [what, name] :
         {std::pair{content::subnormal, "subnormal"}, {content::idle, "idle"}, {content::fading, "fading"}})
        for_each_types([&, what = what, name = std::string(name)]<class Shard>(std::string const& types) {
            std::size_t const out_of_cache = // filling takes most of the time
                elements_for(std::min(given.chosen.bytes, 512e6), memory_bytes(Shard::dtypes));
            for_each_size(given, {std::size_t{1} << 20, out_of_cache}, [&](executor const& cpu, std::size_t n) {
                if (given.chosen.quick && (n != out_of_cache || cpu.threads() != 1))
                    return;
                add_row("subnormals/" + name + "/" + types + "/" + row_name(cpu, n),
                        std::min(rounds_for(given.chosen, n), 2 * given.chosen.rounds),
                        [&cpu, n, what, name](benchmark::State& state) {
                            other_content<Shard>(state, cpu, n, what, name);
                        });
            });
        });
}

} // namespace bench
