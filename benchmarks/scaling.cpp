// SPDX-License-Identifier: Apache-2.0
// What more threads cost or save: all threads against one, from few elements to many. Above 1, threads make it slower.
//
//   scaling/WHAT/TYPES/elems:N/threads:T
//
// WHAT: step, adamant::step(); norm, sum_of_squares(); clip, optimizer::step() with a max_norm; submit, begin_step(),
// submit() and finish(), also against step() in one thread.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <adamant/optimizer.hpp>
#include <adamant/step.hpp>

#include "arrays.hpp"
#include "rows.hpp"

namespace bench {

namespace {

using race::contender;
using race::part_in_race;

enum class call { step, norm, clip, submit };

template <class Shard>
void scaling(benchmark::State& state, executor const& one, executor const& cpu, std::size_t n, call what)
{
    arrays const a(Shard::dtypes, n);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, 0, n);
    adamant::coefficients const c = adamw();
    std::vector<std::unique_ptr<adamant::optimizer>> optimizers;
    std::vector<contender> contenders;
    for (executor const* const by : {&cpu, &one}) {
        adamant::optimizer_options options;
        if (what == call::clip)
            options.max_norm = 1;
        optimizers.push_back(std::make_unique<adamant::optimizer>(*by, options));
        adamant::optimizer& o = *optimizers.back();
        o.add_shard({.group = o.add_group({.name = "all", .hyper = {.lr = 1e-5}}), .name = "w", .shard = shard});
        o.prepare(what == call::submit);
        contender runs{by == &cpu ? part_in_race::subject : part_in_race::limit,
                       by == &cpu ? "all threads" : "one thread",
                       "",
                       {}};
        switch (what) {
        case call::step: runs.run = [by, &shard, &c] { adamant::step(*by, shard, c); }; break;
        case call::norm:
            runs.run = [by, &a, n] {
                benchmark::DoNotOptimize(sum_of_squares(*by, a.get<typename Shard::grad_type>(1), n));
            };
            break;
        case call::clip: runs.run = [&o] { o.step(); }; break;
        case call::submit:
            runs.run = [&o] {
                o.begin_step();
                o.submit(adamant::shard_id(0));
                o.finish();
            };
            break;
        }
        contenders.push_back(std::move(runs));
    }
    if (what == call::submit)
        contenders.push_back({part_in_race::aside, "step", "", [&] { adamant::step(one, shard, c); }});
    race::run(state, contenders, {repeats_for(n), race::no_pause});
    report(state, contenders, {});
}

} // namespace

void add_scaling(setup const& given)
{
    auto const add = [&]<class Shard>(std::string const& types) {
        for (std::size_t const n :
             {std::size_t{64}, std::size_t{1} << 10, std::size_t{1} << 12, std::size_t{1} << 14, std::size_t{1} << 16,
              std::size_t{1} << 18, std::size_t{1} << 20, std::size_t{1} << 24})
            for (auto const& [what, name] : {std::pair{call::step, "step"},
                                             {call::norm, "norm"},
                                             {call::clip, "clip"},
                                             {call::submit, "submit"}}) {
                if (given.chosen.quick && n != std::size_t{1} << 16)
                    continue;
                add_row("scaling/" + std::string(name) + "/" + types + "/" + row_name(given.all(), n),
                        rounds_for(given.chosen, n), [&given, n, what = what](benchmark::State& state) {
                            scaling<Shard>(state, given.one(), given.all(), n, what);
                        });
            }
    };
    add.template operator()<f32>("f32");
    add.template operator()<mixed>("mixed");
    add.template operator()<bf16>("bf16");
}

} // namespace bench
