// SPDX-License-Identifier: Apache-2.0
// The whole step of an offload engine: bfloat16 gradients that come scaled, their norm, clipping and finiteness, AdamW
// on float params and moments, and bfloat16 weights (training.hpp).
//
//   offload_step/whole/elems:N/threads:T     optimizer::step() against loops that move its bytes (the gradient twice)
//   and
//                                            do no arithmetic, and against the usual separate passes
//   offload_step/overlap/HOW/elems:N/threads:T
//                                            gradients that arrive over as long as a step takes: against the longer of
//                                            arrival and step, stepping all before the norm is known, measuring only as
//                                            they arrive, and beginning at the end; where they are copied, also a step
//                                            over other gradients beside the same copies
//
// HOW: by_device, no copies; copied, a thread does, as each arrives.

#include <sys/prctl.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/tune.hpp>

#include "references.hpp"
#include "rows.hpp"
#include "separate.hpp"
#include "training.hpp"

namespace bench {

namespace {

using benchmark::State;
using clock_type = std::chrono::steady_clock;

// The same step as passes over everything, each before the next.
class separate_step {
public:
    separate_step(training const& data, double max_norm) : data_(data), max_norm_(max_norm)
    {
        data_.cpu().for_each_owned_slice(data_.elems(), [&](slice part) { fill_ordinary_grad<float>(wide_, part); });
    }
    void run_with_plain_adam()
    {
        bench::arrays const& a = data_.arrays();
        run([&] {
            plain::step(a.get<float>(0), wide_.get<float>(1), a.get<float>(2), a.get<float>(3), data_.elems(),
                        plain_coefficients(c_), data_.cpu().threads());
        });
    }
    void run_with_adamants()
    {
        bench::arrays const& a = data_.arrays();
        adamant::shard const shard(a.get<float>(0), wide_.get<float>(1), a.get<float>(2), a.get<float>(3),
                                   data_.elems());
        run([&] { adamant::step(data_.cpu(), shard, c_); });
    }
    [[nodiscard]] bool found_infinities() const { return !finite_; }

private:
    template <class Adam>
    void run(Adam const& adam)
    {
        std::size_t const n = data_.elems();
        unsigned const threads = data_.cpu().threads();
        float* const wide = wide_.get<float>(1);
        separate::widen(data_.arrays().get<std::uint16_t>(1), wide, n, threads);
        finite_ = finite_ && separate::all_finite(wide, n, threads);
        double const norm = std::sqrt(separate::sum_of_squares(wide, n, threads)) / loss_scale;
        separate::scale(wide, static_cast<float>(adamant::clip_coefficient(norm, max_norm_) / loss_scale), n, threads);
        adam();
        separate::narrow(data_.arrays().get<float>(0), data_.arrays().get<std::uint16_t>(4), n, threads);
    }

    training const& data_;
    double max_norm_;
    bench::arrays wide_{shard_dtypes{dtype::none, dtype::float32}, data_.elems()};
    adamant::coefficients c_ = adamant::make_coefficients(training_adamw, 1);
    bool finite_ = true;
};

void whole(State& state, executor const& cpu, std::size_t n)
{
    training data(cpu, n);
    optimizer opt(cpu);
    data.add_to(opt);
    opt.prepare(false);
    double const max_norm = 0.5 * data.warm_up(opt).global_norm;
    separate_step passes(data, max_norm);

    optimizer_report last;
    std::vector<contender> all;
    all.push_back({part_in_race::subject, "step", "", [&] { last = whole_step(opt, max_norm); }, data.before_run()});
    all.push_back(
        {part_in_race::aside, "separate", "plain Adam", [&] { passes.run_with_plain_adam(); }, data.before_run()});
    all.push_back(
        {part_in_race::aside, "separate", "adamant's Adam", [&] { passes.run_with_adamants(); }, data.before_run()});
    add_limits<mixed>(all, cpu, data.arrays(), n, gradient_reads::twice, data.before_run());
    race::run(state, all, {training_repeats_for(n), cpu.threads() > 1 ? race::pause_after_openmp : race::no_pause});
    require(!passes.found_infinities() && last.outcome == adamant::step_outcome::applied && last.clip_coefficient < 1,
            "whole steps");
    report(state, all, {static_cast<double>(n), static_cast<double>(last.bytes_moved())});
}

// How gradients come: by a device's own hand, which costs the CPU nothing, or copied by a thread as soon as they would
// have arrived.
enum class arrival { by_device, copied };

// Calls arrived(i) for all shards, for the last one when `takes` is over; between, it sleeps.
template <class Arrived>
void arrive(std::size_t shards, std::chrono::duration<double> takes, Arrived const& arrived)
{
    auto const start = clock_type::now();
    std::async(std::launch::async, [&] {
        prctl(PR_SET_TIMERSLACK, 1000); // of this thread alone; else the kernel wakes it up to 50 us late
        for (std::size_t i = 0; i < shards; ++i) {
            std::this_thread::sleep_until(start +
                                          std::chrono::duration_cast<clock_type::duration>(
                                              takes * (static_cast<double>(i + 1) / static_cast<double>(shards))));
            arrived(i);
        }
    }).get();
}

void overlap(State& state, executor const& cpu, std::size_t n, arrival how)
{
    training data(cpu, n);
    optimizer until_finish(cpu);
    optimizer always(cpu, {.speculate = adamant::speculation::always});
    optimizer never(cpu, {.speculate = adamant::speculation::never});
    for (optimizer* opt : {&until_finish, &always, &never}) {
        data.add_to(*opt);
        opt->prepare(opt != &never);
    }
    data.warm_up(always);
    bool const copied = how == arrival::copied;
    shard_dtypes const one_array{dtype::none, dtype::none, dtype::none, dtype::none,
                                 copied ? dtype::bfloat16 : dtype::none};
    bench::arrays const sent(one_array, n);
    bench::arrays const elsewhere(one_array, n);

    std::vector<double> step_seconds;
    for (int i = 0; i < 9; ++i) {
        data.draw();
        auto const start = clock_type::now();
        whole_step(never, never_reached);
        step_seconds.push_back(race::seconds_since(start));
    }
    std::chrono::duration<double> const takes(adamant::median(step_seconds));

    auto const copy_to = [&](bfloat16* to, std::size_t i) {
        std::size_t const elems = data.shard_elems();
        std::memcpy(to + i * elems, sent.get<bfloat16>(4) + i * elems, elems * sizeof(bfloat16));
    };
    auto const receive = [&](std::size_t i) {
        if (copied)
            copy_to(data.grad(), i);
    };
    auto const as_they_arrive = [&](optimizer& opt) {
        opt.begin_step({.loss_scale = loss_scale, .max_norm = never_reached});
        arrive(data.shards(), takes, [&](std::size_t i) {
            receive(i);
            opt.submit(i);
        });
        return opt.finish();
    };
    std::vector<contender> all;
    optimizer_report speculated, measured;
    auto const add = [&](part_in_race part, char const* name, std::function<void()> const& run) {
        all.push_back({part, name, "", run, [&, copied] { data.draw(copied ? sent.get<bfloat16>(4) : data.grad()); }});
    };
    add(part_in_race::subject, "speculated", [&] { speculated = as_they_arrive(until_finish); });
    add(part_in_race::aside, "always", [&] { as_they_arrive(always); });
    add(part_in_race::aside, "measured", [&] { measured = as_they_arrive(never); });
    add(part_in_race::aside, "at_end", [&] {
        arrive(data.shards(), takes, receive);
        whole_step(never, never_reached);
    });
    if (copied) // what the two take where neither waits for the other
        add(part_in_race::aside, "beside_copies", [&] {
            auto const copies = std::async(std::launch::async, [&] {
                arrive(data.shards(), takes, [&](std::size_t i) { copy_to(elsewhere.get<bfloat16>(4), i); });
            });
            whole_step(never, never_reached);
            copies.wait();
        });
    add(part_in_race::limit, "the step alone", [&] { whole_step(never, never_reached); });
    add(part_in_race::limit, "the arrival alone", [&] { arrive(data.shards(), takes, [](std::size_t) {}); });
    race::run(state, all);
    require(speculated.speculated && !speculated.rolled_back && !measured.speculated, "overlap");
    report(state, all, moving(n, mixed::bytes_per_element()));
    state.counters["shards_waited"] = static_cast<double>(speculated.shards_waited);
}

} // namespace

void add_offload_step(setup const& given)
{
    std::vector<std::size_t> const all = sizes(given.chosen, training_bytes_each);
    for_each_size(given, all, [&](executor const& cpu, std::size_t n) {
        add_row("offload_step/whole/" + row_name(cpu, n), rounds_for(given.chosen, n),
                [&cpu, n](State& state) { whole(state, cpu, n); });
    });
    for (auto const& [how, name] : {std::pair{arrival::by_device, "by_device"}, {arrival::copied, "copied"}})
        add_row("offload_step/overlap/" + std::string(name) + "/" + row_name(given.all(), all.back()),
                given.chosen.rounds,
                [&given, n = all.back(), how = how](State& state) { overlap(state, given.all(), n, how); });
}

} // namespace bench
