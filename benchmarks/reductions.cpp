// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient and the check that it is finite, and the scores of its columns, against loops that
// only read.
//
//   reductions/TYPE/elems:N/threads:T/pages:4K or 2M
//   reductions/columns:COLUMNS/TYPE/...

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <adamant/step.hpp>
#include <adamant/detail/step/column_scores.hpp>

#include "arrays.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

template <class Grad>
void sum(benchmark::State& state, executor const& cpu, std::size_t n, page_kind pages)
{
    arrays const a({dtype::none, adamant::dtype_of<Grad>}, n, pages);
    cpu.for_each_owned_slice(n, [&](slice part) { fill_ordinary_grad<Grad>(a, part); });
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "sum", "",
                          [&] { benchmark::DoNotOptimize(adamant::sum_of_squares(cpu, a.get<Grad const>(1), n)); }});
    add_reads<Grad>(contenders, cpu, a.get<Grad const>(1), n);
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, moving(n, sizeof(Grad)));
}

template <class Grad>
void score(benchmark::State& state, executor const& cpu, std::size_t n, std::size_t columns, page_kind pages)
{
    arrays const a({dtype::none, adamant::dtype_of<Grad>}, n, pages);
    cpu.for_each_owned_slice(n, [&](slice part) { fill_ordinary_grad<Grad>(a, part); });
    void const* const grad = a.get<Grad const>(1);
    float const largest = adamant::largest_magnitude(cpu, grad, adamant::dtype_of<Grad>, n);
    std::vector<std::int64_t> scores(columns);
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "scores", "", [&] {
                              add_column_scores(cpu, grad, adamant::dtype_of<Grad>, n / columns, columns, largest,
                                                adamant::column_score::magnitude, scores);
                              benchmark::DoNotOptimize(scores.data());
                          }});
    add_reads<Grad>(contenders, cpu, a.get<Grad const>(1), n / columns * columns);
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, moving(n, sizeof(Grad)));
}

template <class Grad>
void add(setup const& given, std::string const& type)
{
    std::vector<std::size_t> const all = sizes(given.chosen, sizeof(Grad));
    for_each_size(
        given, all,
        [&](executor const& cpu, std::size_t n) {
            for (page_kind const pages : {page_kind::normal, page_kind::transparent}) {
                if (pages == page_kind::normal && (n != all.back() || given.chosen.quick))
                    continue;
                add_row("reductions/" + type + "/" + row_name(cpu, n) +
                            (pages == page_kind::normal ? "/pages:4K" : "/pages:2M"),
                        rounds_for(given.chosen, n),
                        [&cpu, n, pages](benchmark::State& state) { sum<Grad>(state, cpu, n, pages); });
                for (std::size_t const columns : {2048u, 11008u}) // of many models' matrices
                    if (pages == page_kind::transparent && n >= columns)
                        add_row("reductions/columns:" + std::to_string(columns) + "/" + type + "/" + row_name(cpu, n),
                                rounds_for(given.chosen, n), [&cpu, n, columns, pages](benchmark::State& state) {
                                    score<Grad>(state, cpu, n, columns, pages);
                                });
            }
        },
        sizeof(Grad) / 2);
}

} // namespace

void add_reductions(setup const& given)
{
    add<float>(given, "f32");
    add<bfloat16>(given, "bf16");
}

} // namespace bench
