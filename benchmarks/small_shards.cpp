// SPDX-License-Identifier: Apache-2.0
// What it costs that a model has many tensors: one call for a small shard, and many shards in one call against one
// shard of the same total.
//
//   small_shards/call/TYPES/elems:N          one shard, hot
//   small_shards/LAYOUT/elems:N/threads:T    N elements in shards of 4096, of float state with bfloat16 gradients and
//                                            weights
//   small_shards/tiny_K/elems:N/threads:T    the same in 4000 shards of K elements, separate; "submitted" is an
//                                            optimizer's begin_step(), submit() of each, and finish(), "speculated" the
//                                            same with the options as they are by default
//
// adjacent: stretches of flat arrays, in their order. shuffled: the same in a random order. separate: each array of
// each shard is an allocation of its own, as in a program of many tensors.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/optimizer.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/core/stream_copy.hpp>

#include "arrays.hpp"
#include "limit.hpp"
#include "references.hpp"
#include "rows.hpp"

namespace bench {

namespace {

constexpr std::size_t shard_elems = 4096;
constexpr std::size_t tiny_shards = 4000;

template <class Shard>
void call(benchmark::State& state, executor const& cpu, std::size_t n)
{
    arrays const a(Shard::dtypes, n);
    fill<Shard>(cpu, a, n, content::ordinary);
    Shard const shard = shard_of<Shard>(a, 0, n);
    adamant::coefficients const c = adamw();
    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "step", "", [&] { adamant::step(cpu, shard, c); }});
    add_limits<Shard>(contenders, cpu, a, n);
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, moving(n, Shard::bytes_per_element()));
}

enum class layout { adjacent, shuffled, separate };

// Five allocations, of ordinary training's values.
struct tensor {
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight_out;

    tensor(std::size_t n, std::minstd_rand& random) : param(n), exp_avg(n), exp_avg_sq(n), grad(n), weight_out(n)
    {
        std::normal_distribution<float> normal;
        for (std::size_t i = 0; i < n; ++i) {
            param[i] = 0.02f * normal(random);
            exp_avg[i] = 1e-3f * normal(random);
            exp_avg_sq[i] = 1e-9f + 1e-6f * std::abs(normal(random));
            grad[i] = adamant::narrow<bfloat16>(1e-3f * normal(random));
        }
    }
};

// How arrays are moved that do not begin at a cache line: by whole lines of each array, or by the vectors of a step,
// which lie in two lines if the arrays begin at different places of a line.
enum class move_unit { whole_lines, vectors };

// A step's bytes moved shard by shard, in the list's order and cut as its step is, without arithmetic: what memory
// allows where shards lie like that. Of a line that is not moved, one byte is.
template <limit::stores Stores, move_unit Unit>
void move_shards(executor const& cpu, std::vector<adamant::any_shard> const& parts)
{
    constexpr std::size_t elem_bytes[] = {4, 2, 4, 4, 2};
    constexpr std::size_t line = 64;
    constexpr std::size_t in_whole_lines = shard_elems - line / 2; // wherever an array begins
    auto const touch = [](std::byte* at, bool write) {
        std::byte volatile* const byte = at;
        std::byte const value = *byte;
        if (write)
            *byte = value;
    };
    cpu.for_each_slice(parts.size() * shard_elems, [&](slice part) {
        for (std::size_t i = part.begin; i < part.end; i += std::min(part.end - i, shard_elems - i % shard_elems)) {
            adamant::kernel::step_pointers const at = parts[i / shard_elems].pointers();
            std::byte* arrays[] = {at.param, const_cast<std::byte*>(at.grad), at.exp_avg, at.exp_avg_sq, at.weight_out};
            std::size_t const begin = i % shard_elems;
            std::size_t end = std::min(shard_elems, begin + part.end - i);
            auto const before_line = [&](std::size_t k) { return -reinterpret_cast<std::uintptr_t>(arrays[k]) % line; };
            constexpr std::size_t first =
                Stores == limit::stores::cached ? 2 : 4; // the array whose vectors are aligned
            std::size_t const head = before_line(first) / elem_bytes[first];
            std::size_t skipped[5];
            for (std::size_t k = 0; k < std::size(arrays); ++k)
                skipped[k] = Unit == move_unit::vectors ? head * elem_bytes[k] : before_line(k);
            bool const aligned =
                std::all_of(std::begin(skipped), std::end(skipped), [](std::size_t bytes) { return bytes == 0; });
            for (std::size_t k = 0; k < std::size(arrays) && !aligned; ++k) {
                std::byte* const array_end = arrays[k] + shard_elems * elem_bytes[k];
                if (begin == 0)
                    touch(arrays[k], k != 1);
                arrays[k] += skipped[k];
                if (end == shard_elems)
                    for (std::byte* rest = arrays[k] + in_whole_lines * elem_bytes[k]; rest < array_end; rest += line)
                        touch(rest, k != 1);
            }
            if (!aligned)
                end = std::min(end, in_whole_lines);
            limit::move_bytes<4, 2, 4, 2, Stores, false, false>(arrays, begin, end, 0);
        }
        adamant::detail::stream_fence();
    });
}

void many(benchmark::State& state, executor const& cpu, std::size_t n, layout where)
{
    arrays const flat(mixed::dtypes, n);
    fill<mixed>(cpu, flat, n, content::ordinary);
    std::minstd_rand random(1);
    std::vector<tensor> tensors;
    std::vector<adamant::any_shard> parts;
    for (std::size_t i = 0; i < n / shard_elems; ++i)
        if (where == layout::separate)
            tensors.emplace_back(shard_elems, random);
        else
            parts.emplace_back(shard_of<mixed>(flat, i * shard_elems, shard_elems));
    for (tensor& t : tensors)
        parts.emplace_back(adamant::shard(t.param, t.grad, t.exp_avg, t.exp_avg_sq, t.weight_out));
    if (where == layout::shuffled)
        std::shuffle(parts.begin(), parts.end(), random);
    adamant::shard_list const list(parts);
    mixed const whole = shard_of<mixed>(flat, 0, n);
    adamant::coefficients const c = adamw();

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "many", "", [&] { adamant::step(cpu, list, std::span(&c, 1)); }});
    contenders.push_back({part_in_race::aside, "one_shard", "", [&] { adamant::step(cpu, whole, c); }});
    auto const add_moves = [&]<move_unit Unit>(char const* name) {
        contenders.push_back({part_in_race::aside, name, "cached stores",
                              [&] { move_shards<limit::stores::cached, Unit>(cpu, parts); }});
        if (limit::can_stream && !in_cache(n))
            contenders.push_back({part_in_race::aside, name, "weight_out streamed",
                                  [&] { move_shards<limit::stores::weight_out_streamed, Unit>(cpu, parts); }});
    };
    add_moves.template operator()<move_unit::whole_lines>("moving_shards");
    if (where == layout::separate)
        add_moves.template operator()<move_unit::vectors>("moving_vectors");
    add_limits<mixed>(contenders, cpu, flat, n);
    race::run(state, contenders, {repeats_for(n)});
    report(state, contenders, {static_cast<double>(n), static_cast<double>(list.bytes_moved())});
}

void tiny(benchmark::State& state, executor const& cpu, std::size_t each)
{
    std::minstd_rand random(1);
    std::vector<tensor> tensors;
    for (std::size_t i = 0; i < tiny_shards; ++i)
        tensors.emplace_back(each, random);
    std::vector<adamant::any_shard> parts;
    adamant::optimizer submitted(cpu, {.on_nonfinite = adamant::nonfinite_policy::apply});
    adamant::optimizer speculated(cpu);
    submitted.add_group("all", {.lr = 1e-3});
    speculated.add_group("all", {.lr = 1e-3});
    for (tensor& t : tensors) {
        adamant::shard const view(t.param, t.grad, t.exp_avg, t.exp_avg_sq, t.weight_out);
        submitted.add_shard({.group = 0, .name = std::to_string(parts.size()), .shard = view});
        speculated.add_shard({.group = 0, .name = std::to_string(parts.size()), .shard = view});
        parts.emplace_back(view);
    }
    adamant::shard_list const list(parts);
    adamant::coefficients const c = adamw();
    std::size_t const n = tiny_shards * each;
    arrays const flat(mixed::dtypes, n);
    fill<mixed>(cpu, flat, n, content::ordinary);

    std::vector<contender> contenders;
    contenders.push_back({part_in_race::subject, "many", "", [&] { adamant::step(cpu, list, std::span(&c, 1)); }});
    auto const add_steps_of = [&](adamant::optimizer& of, char const* name) {
        contenders.push_back({part_in_race::aside, name, "", [&of] {
                                  of.begin_step();
                                  for (std::size_t i = 0; i < tiny_shards; ++i)
                                      of.submit(i);
                                  of.finish();
                              }});
    };
    add_steps_of(submitted, "submitted");
    add_steps_of(speculated, "speculated");
    add_limits<mixed>(contenders, cpu, flat, n);
    // A shard of one element takes as long as many elements.
    race::run(state, contenders, {repeats_for(tiny_shards * std::max<std::size_t>(each, 64))});
    report(state, contenders, {static_cast<double>(n), static_cast<double>(list.bytes_moved())});
}

} // namespace

void add_small_shards(setup const& given)
{
    auto const add_call = [&]<class Shard>(std::string const& types) {
        for (std::size_t const n : {std::size_t{1101}, std::size_t{4096}})
            add_row("small_shards/call/" + types + "/" + row_name(given.one(), n), rounds_for(given.chosen, n),
                    [&, n](benchmark::State& state) { call<Shard>(state, given.one(), n); });
    };
    add_call.template operator()<f32>("f32");
    add_call.template operator()<mixed>("mixed");

    for (std::size_t const each : {1, 10, 100})
        for (executor const& cpu : given.cpus)
            add_row("small_shards/tiny_" + std::to_string(each) + "/" + row_name(cpu, tiny_shards * each),
                    rounds_for(given.chosen, tiny_shards * each),
                    [&cpu, each](benchmark::State& state) { tiny(state, cpu, each); });

    std::vector<std::size_t> totals{65536, std::size_t{1} << 20, 10000 * shard_elems};
    if (given.chosen.quick)
        totals = {65536, 2500 * shard_elems};
    for (auto const& [where, name] :
         {std::pair{layout::adjacent, "adjacent"}, {layout::shuffled, "shuffled"}, {layout::separate, "separate"}})
        for_each_size(given, totals, [&, where = where, name = name](executor const& cpu, std::size_t n) {
            add_row("small_shards/" + std::string(name) + "/" + row_name(cpu, n),
                    // Where shards lie all over memory times spread the more.
                    rounds_for(given.chosen, n) * (n == totals.back() ? 2 : 1),
                    [&cpu, n, where](benchmark::State& state) { many(state, cpu, n, where); });
        });
}

} // namespace bench
