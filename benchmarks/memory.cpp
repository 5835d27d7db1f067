// SPDX-License-Identifier: Apache-2.0
// What memory a step works on: huge pages against small ones, and state that one thread has touched first against state
// that the team has, which on several NUMA nodes decides where it lies.
//
//   memory/huge_pages/elems:N/threads:T
//   memory/touched_by_one/elems:N/threads:T
//
// Float state, bfloat16 gradients and weights. The limit runs on the same memory as the row's step.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

struct memory_kind {
    char const* name;
    page_kind pages;
    bool touched_by_one;
};

void against(benchmark::State& state, setup const& given, std::size_t n, memory_kind subject, memory_kind other)
{
    executor const& cpu = given.all();
    arrays const first(mixed::dtypes, n, subject.pages);
    arrays const second(mixed::dtypes, n, other.pages);
    fill<mixed>(subject.touched_by_one ? given.one() : cpu, first, n, content::ordinary);
    fill<mixed>(other.touched_by_one ? given.one() : cpu, second, n, content::ordinary);
    adamant::coefficients const c = adamw();
    std::vector<contender> contenders;
    contenders.push_back(
        {part_in_race::subject, subject.name, "", [&] { adamant::step(cpu, shard_of<mixed>(first, 0, n), c); }});
    contenders.push_back(
        {part_in_race::aside, other.name, "", [&] { adamant::step(cpu, shard_of<mixed>(second, 0, n), c); }});
    add_limits<mixed>(contenders, cpu, first, n);
    race::run(state, contenders);
    report(state, contenders, moving(n, mixed::bytes_per_element()));
    state.counters["huge_percent"] = 100 * first.huge_share();
    state.counters["huge_percent_of_other"] = 100 * second.huge_share();
}

} // namespace

void add_memory(setup const& given)
{
    std::size_t const n = elements_for(std::min(given.chosen.bytes, 640e6), memory_bytes(mixed::dtypes));
    auto const add = [&](memory_kind subject, memory_kind other) {
        add_row(std::string("memory/") + subject.name + "/" + row_name(given.all(), n), 2 * given.chosen.rounds,
                [=, &given](benchmark::State& state) { against(state, given, n, subject, other); });
    };
    add({"huge_pages", page_kind::transparent, false}, {"small_pages", page_kind::normal, false});
    add({"touched_by_one", page_kind::transparent, true}, {"touched_by_team", page_kind::transparent, false});
}

} // namespace bench
