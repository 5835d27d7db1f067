// SPDX-License-Identifier: Apache-2.0
// The whole step of an offload engine: bfloat16 gradients that come scaled, their norm, clipping and finiteness, AdamW
// on float params and moments, and bfloat16 weights.
//
//   whole/...        optimizer::step() against the usual separate passes over everything, and against loops that move
//                    its bytes and do no arithmetic: how far it is from either.
//   speculation/...  a step that began before its norm was known, where nothing had to be taken back and where all was:
//                    against step(), against a step that needs no norm, and against a journal of plain copies.
//   overlap/...      gradients that arrive over as long as a step takes: how much of the step is hidden behind that.
//
// Each has rows for arrays out of cache and, but for the last, for small ones in it. All contenders of a row run in one
// race (race.hpp), after 30 steps with random gradients, heavy-tailed and drawn anew before every step that is timed:
// what a record needs depends on how moments and gradients go together. There is no bias correction, so that all steps
// are alike.
//
//   adamant_benchmark_offload --benchmark_counters_tabular=true
//       [--elems=67108864] [--small-elems=65536] [--shards=64] [--iterations=15]
//       [--benchmark_filter='speculation/.*']
//
// ADAMANT_ISA chooses the library's instruction set; taskset, the processors and so the threads.

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <adamant/adamant.hpp>

#include "limit.hpp"
#include "plain.hpp"
#include "race.hpp"
#include "random.hpp"
#include "separate.hpp"

namespace {

using adamant::bfloat16;
using adamant::executor;
using adamant::optimizer;
using adamant::optimizer_report;
using adamant::slice;
using benchmark::State;
using race::contender;
using race::median;
using race::part_in_race;
using race::quantile;

using clock_type = std::chrono::steady_clock;

struct options {
    double elems = 0x1p26;
    double small_elems = 0x1p16;
    double shards = 64; // of large arrays; a quarter of it of small ones
    double iterations = 15;
};

constexpr double loss_scale = 1024;
constexpr double never_reached = 1e9; // a max_norm

constexpr adamant::hyperparameters adamw{
    .lr = 1e-4, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled, .bias_correction = false};

// ------------------------------------------------------------------------------------------------------------- data

// Much as Student's distribution of three degrees of freedom, whose tails are heavy: over the length of a vector of
// three even numbers.
float heavy_tailed(std::uint32_t random)
{
    std::uint32_t const more = random_bits(random ^ 0x9e3779b9u);
    float squares = 0;
    for (unsigned k = 0; k < 3; ++k) {
        float const x = static_cast<float>(2 * static_cast<int>(more >> 10 * k & 1023) - 1023) * (1 / 1023.0f);
        squares += x * x;
    }
    return bell(random) / std::sqrt(squares);
}

// An array that begins at a cache line, and at another offset in its page than the others do.
template <class T>
class shifted {
public:
    shifted(executor const& cpu, std::size_t n, std::size_t which)
        : shift_(which * 1088 / sizeof(T)), memory_(make_buffer<T>(cpu, n + shift_))
    {
    }
    [[nodiscard]] T* data() { return memory_.data() + shift_; }

private:
    std::size_t shift_;
    adamant::buffer<T> memory_;
};

// The arrays of n elements in `shards` shards, which follow each other in memory.
struct training {
    executor cpu;
    std::size_t n, shards;
    shifted<float> param, exp_avg, exp_avg_sq;
    shifted<bfloat16> grad, weight_out;
    std::uint32_t draws = 0;

    training(executor const& on, std::size_t elems, std::size_t shard_count)
        : cpu(on), n(elems), shards(shard_count), param(on, n, 0), exp_avg(on, n, 2), exp_avg_sq(on, n, 3),
          grad(on, n, 1), weight_out(on, n, 4)
    {
        cpu.for_each_slice(n, [&](slice part) {
            for (std::size_t i = part.begin; i < part.end; ++i) {
                auto const random = random_bits(static_cast<std::uint32_t>(i));
                param.data()[i] = 0.02f * bell(random);
                exp_avg.data()[i] = 3e-4f * bell(random_bits(random ^ 1));
                exp_avg_sq.data()[i] = 1e-6f * (0.5f + std::abs(bell(random_bits(random ^ 2))));
            }
        });
    }

    [[nodiscard]] std::size_t shard_elems() const { return n / shards; }
    [[nodiscard]] auto shard(std::size_t begin, std::size_t elems)
    {
        return adamant::shard(param.data() + begin, grad.data() + begin, exp_avg.data() + begin,
                              exp_avg_sq.data() + begin, weight_out.data() + begin, elems);
    }
    void add_to(optimizer& opt)
    {
        std::size_t const group = opt.add_group("all", adamw);
        for (std::size_t i = 0; i < shards; ++i)
            opt.add_shard(group, "tensor " + std::to_string(i), shard(i * shard_elems(), shard_elems()));
    }
    void draw(bfloat16* to)
    {
        std::uint32_t const seed = random_bits(++draws);
        cpu.for_each_slice(n, [=](slice part) {
            for (std::size_t i = part.begin; i < part.end; ++i)
                to[i] = adamant::narrow<bfloat16>(
                    static_cast<float>(loss_scale * 1e-3) *
                    heavy_tailed(random_bits(static_cast<std::uint32_t>(i) * 0x9e3779b1u ^ seed)));
        });
    }
    void draw() { draw(grad.data()); }
};

// ------------------------------------------------------------------------------------------------------------ steps

optimizer_report whole_step(optimizer& opt, double max_norm)
{
    return opt.step({.loss_scale = loss_scale, .max_norm = max_norm});
}

optimizer_report submitted_step(optimizer& opt, double max_norm)
{
    opt.begin_step({.loss_scale = loss_scale, .max_norm = max_norm});
    for (std::size_t i = 0; i < opt.shards(); ++i)
        opt.submit(i);
    return opt.finish();
}

void require(bool condition, char const* what)
{
    if (!condition)
        throw std::runtime_error(std::string("this row does not measure what it says: ") + what);
}

// The state as training leaves it. Returns the last report.
optimizer_report warm_up(training& data, optimizer& opt)
{
    optimizer_report last;
    for (int t = 0; t < 30; ++t) {
        data.draw();
        last = whole_step(opt, never_reached);
        require(last.outcome == adamant::step_outcome::applied && last.clip_coefficient == 1, "a warm-up step");
    }
    return last;
}

// Each with gradients of its own, whatever it is, and on a machine at rest: the threads of an OpenMP region that is
// over spin for a while.
void add(std::vector<contender>& all, training& data, part_in_race part, std::string const& name,
         std::function<void()> const& run)
{
    all.push_back({part, name, run, [&data] {
                       std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       data.draw();
                   }});
}

contender const& named(std::vector<contender> const& all, std::string_view name)
{
    return *std::find_if(all.begin(), all.end(), [&](contender const& c) { return c.name == name; });
}

// The one with the smallest median of those whose names begin so.
contender const& best_of(std::vector<contender> const& all, std::string_view prefix)
{
    contender const* best = nullptr;
    for (contender const& c : all)
        if (c.name.starts_with(prefix) && (best == nullptr || median(c.seconds) < median(best->seconds)))
            best = &c;
    return *best;
}

// The median of one over another within rounds, and its spread.
void count_ratio(State& state, std::string const& name, contender const& over, contender const& under)
{
    std::vector<double> ratios;
    for (std::size_t i = 0; i < over.seconds.size(); ++i)
        ratios.push_back(over.seconds[i] / under.seconds[i]);
    state.counters[name] = median(ratios);
    state.counters[name + "_p10"] = quantile(ratios, 0.1);
    state.counters[name + "_p90"] = quantile(ratios, 0.9);
}

void count_time(State& state, contender const& c, double elements)
{
    state.counters[c.name + "_ns"] = median(c.seconds) * 1e9 / elements;
}

// ------------------------------------------------------------------------------------------------------------- rows

// repeats: how often each contender works in one round.
void whole(State& state, executor const& cpu, std::size_t n, std::size_t shards, int repeats)
{
    training data(cpu, n, shards);
    optimizer opt(cpu);
    data.add_to(opt);
    opt.prepare(false);
    double const max_norm = 0.5 * warm_up(data, opt).global_norm;
    auto const repeat = [repeats](auto const& work) {
        for (int i = 0; i < repeats; ++i)
            work();
    };

    std::vector<contender> all;
    optimizer_report last;
    add(all, data, part_in_race::subject, "step", [&] { repeat([&] { last = whole_step(opt, max_norm); }); });

    shifted<float> wide(cpu, n, 5);
    adamant::shard const peer_shard(data.param.data(), wide.data(), data.exp_avg.data(), data.exp_avg_sq.data(), n);
    auto const* const grad = reinterpret_cast<std::uint16_t const*>(data.grad.data());
    auto* const weight_out = reinterpret_cast<std::uint16_t*>(data.weight_out.data());
    unsigned const threads = cpu.threads();
    bool finite = true;
    auto const separate_passes = [&](auto const& adam) {
        separate::widen(grad, wide.data(), n, threads);
        finite = finite && separate::all_finite(wide.data(), n, threads);
        double const norm = std::sqrt(separate::sum_of_squares(wide.data(), n, threads)) / loss_scale;
        double const clip = adamant::clip_coefficient(norm, max_norm);
        separate::scale(wide.data(), static_cast<float>(clip / loss_scale), n, threads);
        adam();
        separate::narrow(data.param.data(), weight_out, n, threads);
    };
    adamant::coefficients const c = adamant::make_coefficients(adamw, 1);
    plain::coefficients const same{c.beta1, c.beta2, c.inv_sqrt_bias2, c.eps, -c.neg_step_size, c.decay};
    add(all, data, part_in_race::aside, "separate, plain Adam", [&] {
        repeat([&] {
            separate_passes([&] {
                plain::step(data.param.data(), wide.data(), data.exp_avg.data(), data.exp_avg_sq.data(), n, same,
                            threads);
            });
        });
    });
    add(all, data, part_in_race::aside, "separate, adamant's Adam",
        [&] { repeat([&] { separate_passes([&] { adamant::step(cpu, peer_shard, c); }); }); });

    std::byte* const arrays[] = {
        reinterpret_cast<std::byte*>(data.param.data()), reinterpret_cast<std::byte*>(data.grad.data()),
        reinterpret_cast<std::byte*>(data.exp_avg.data()), reinterpret_cast<std::byte*>(data.exp_avg_sq.data()),
        reinterpret_cast<std::byte*>(data.weight_out.data())};
    auto const add_limit = [&]<limit::stores Stores>(char const* what) {
        for (std::size_t const ahead : {std::size_t{0}, std::size_t{1024}, std::size_t{2048}, std::size_t{4096}})
            add(all, data, part_in_race::reference, what + std::to_string(ahead), [&, ahead] {
                repeat([&] {
                    cpu.for_each_slice(
                        n, [&](slice part) { limit::read_bytes<2>(arrays[1], part.begin, part.end, ahead); });
                    cpu.for_each_slice(n, [&](slice part) {
                        limit::move_bytes<4, 2, 4, 2, Stores>(arrays, part.begin, part.end, ahead);
                    });
                });
            });
    };
    add_limit.template operator()<limit::stores::cached>("limit, cached stores, prefetch ");
    if constexpr (limit::can_stream)
        add_limit.template operator()<limit::stores::weight_out_streamed>("limit, weight_out streamed, prefetch ");

    race::run(state, all, repeats);
    require(finite && last.outcome == adamant::step_outcome::applied && last.clip_coefficient < 1, "whole steps");
    contender const& step = all.front();
    contender const& peer = best_of(all, "separate");
    contender const& limit = best_of(all, "limit");
    double const elements = static_cast<double>(n) * repeats;
    count_time(state, step, elements);
    state.counters["separate_ns"] = median(peer.seconds) * 1e9 / elements;
    state.counters["limit_ns"] = median(limit.seconds) * 1e9 / elements;
    count_ratio(state, "separate/step", peer, step);
    count_ratio(state, "step/limit", step, limit);
    state.counters["bytes"] = static_cast<double>(last.bytes_moved()) / static_cast<double>(n);
    state.counters["GB/s"] = static_cast<double>(last.bytes_moved()) * repeats / median(step.seconds) * 1e-9;
    state.SetLabel(peer.name + "; " + limit.name);
}

// A step with a record for every block as it would be if the records were the old values themselves.
void step_with_copies(training& data, std::byte* journal, adamant::coefficients const& c)
{
    constexpr std::size_t block = adamant::norm_block_elems;
    constexpr std::size_t bytes = block * sizeof(float);
    adamant::isa const tier = data.cpu.tier();
    auto const squares = adamant::kernel::block_squares_for<bfloat16>(tier);
    auto const step = adamant::kernel::step_for<float, bfloat16, float, float, bfloat16>(tier);
    bool const stream = data.n >= adamant::stream_weight_out_from_elems;
    data.cpu.for_each_slice(data.n, [&](slice part) { // the blocks that begin in it
        for (std::size_t b = (part.begin + block - 1) / block; b * block < part.end; ++b) {
            adamant::kernel::step_pointers const at = data.shard(b * block, block).pointers();
            benchmark::DoNotOptimize(squares(at.grad, block));
            std::byte* const record = journal + 3 * bytes * b;
            std::memcpy(record, at.param, bytes);
            std::memcpy(record + bytes, at.exp_avg, bytes);
            std::memcpy(record + 2 * bytes, at.exp_avg_sq, bytes);
            step(at, 0, block, c, stream);
        }
    });
}

void speculation(State& state, executor const& cpu, std::size_t n, std::size_t shards, int repeats)
{
    training data(cpu, n, shards);
    optimizer opt(cpu, {.speculate = adamant::speculation::always});
    data.add_to(opt);
    opt.prepare();
    optimizer no_norm(cpu, {.on_nonfinite = adamant::nonfinite_policy::apply});
    data.add_to(no_norm);
    no_norm.prepare(false);
    double const biting = 0.5 * warm_up(data, opt).global_norm;
    auto const copies = make_buffer<std::byte>(cpu, n * 3 * sizeof(float));
    adamant::coefficients const c = adamant::make_coefficients(adamw, 1, {.loss_scale = loss_scale});

    std::vector<contender> all;
    optimizer_report speculated, redone, without_norm;
    auto const add_steps = [&](part_in_race part, char const* name, auto const& work) {
        add(all, data, part, name, [&data, repeats, work] {
            for (int i = 0; i < repeats; ++i)
                work();
        });
    };
    auto* const copied_to = const_cast<std::byte*>(copies.data());
    add_steps(part_in_race::subject, "speculated", [&] { speculated = submitted_step(opt, never_reached); });
    add_steps(part_in_race::reference, "step", [&] { whole_step(opt, never_reached); });
    add_steps(part_in_race::aside, "no_norm", [&] { without_norm = no_norm.step({.loss_scale = loss_scale}); });
    add_steps(part_in_race::aside, "copies", [&] { step_with_copies(data, copied_to, c); });
    add_steps(part_in_race::aside, "redone", [&] { redone = submitted_step(opt, biting); });
    add_steps(part_in_race::aside, "clipped", [&] { whole_step(opt, biting); });

    race::run(state, all, repeats);
    require(speculated.speculated && !speculated.rolled_back, "speculation that comes true");
    require(redone.speculated && redone.rolled_back, "speculation that is taken back");
    require(without_norm.update.bytes_moved == 0, "a step without a norm");
    for (contender const& each : all)
        count_time(state, each, static_cast<double>(n) * repeats);
    count_ratio(state, "speculated/step", named(all, "speculated"), named(all, "step"));
    count_ratio(state, "speculated/no_norm", named(all, "speculated"), named(all, "no_norm"));
    count_ratio(state, "copies/speculated", named(all, "copies"), named(all, "speculated"));
    count_ratio(state, "redone/clipped", named(all, "redone"), named(all, "clipped"));
    state.counters["journal_bytes"] = static_cast<double>(speculated.journal_bytes) / static_cast<double>(n);
    state.counters["shards_waited"] = static_cast<double>(speculated.shards_waited + redone.shards_waited);
}

// How gradients come: by a device's own hand, which costs the CPU nothing, or copied by a thread as soon as they would
// have arrived.
enum class arrival { by_device, copied };

// Submits all shards, the last one when `takes` is over; between, it sleeps.
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

void overlap(State& state, executor const& cpu, std::size_t n, std::size_t shards, arrival how)
{
    training data(cpu, n, shards);
    optimizer always(cpu, {.speculate = adamant::speculation::always});
    optimizer never(cpu, {.speculate = adamant::speculation::never});
    for (optimizer* opt : {&always, &never})
        data.add_to(*opt);
    always.prepare();
    never.prepare(false);
    warm_up(data, always);
    shifted<bfloat16> sent(cpu, how == arrival::copied ? n : 0, 5);

    std::vector<double> step_seconds;
    for (int i = 0; i < 9; ++i) {
        data.draw();
        auto const start = clock_type::now();
        whole_step(never, never_reached);
        step_seconds.push_back(std::chrono::duration<double>(clock_type::now() - start).count());
    }
    std::chrono::duration<double> const takes(median(step_seconds));

    auto const receive = [&](std::size_t i) {
        if (how == arrival::copied)
            std::memcpy(data.grad.data() + i * data.shard_elems(), sent.data() + i * data.shard_elems(),
                        data.shard_elems() * sizeof(bfloat16));
    };
    auto const as_they_arrive = [&](optimizer& opt) {
        opt.begin_step({.loss_scale = loss_scale, .max_norm = never_reached});
        arrive(shards, takes, [&](std::size_t i) {
            receive(i);
            opt.submit(i);
        });
        return opt.finish();
    };
    std::vector<contender> all;
    optimizer_report speculated, measured;
    auto const add_step = [&](part_in_race part, char const* name, std::function<void()> const& run) {
        all.push_back(
            {part, name, run, [&, how] { data.draw(how == arrival::copied ? sent.data() : data.grad.data()); }});
    };
    add_step(part_in_race::subject, "speculated", [&] { speculated = as_they_arrive(always); });
    add_step(part_in_race::aside, "measured", [&] { measured = as_they_arrive(never); });
    add_step(part_in_race::aside, "at_end", [&] {
        arrive(shards, takes, receive);
        whole_step(never, never_reached);
    });
    add_step(part_in_race::reference, "step", [&] { whole_step(never, never_reached); });

    race::run(state, all, 1);
    require(speculated.speculated && !speculated.rolled_back && !measured.speculated, "overlap");
    // What nothing can be faster than.
    contender least{part_in_race::reference, "least", {}};
    for (double const seconds : named(all, "step").seconds)
        least.seconds.push_back(std::max(seconds, takes.count()));
    for (contender const& each : all)
        state.counters[each.name + "_ms"] = median(each.seconds) * 1e3;
    state.counters["arrival_ms"] = takes.count() * 1e3;
    for (char const* const name : {"speculated", "measured", "at_end"})
        count_ratio(state, std::string(name) + "/least", named(all, name), least);
    state.counters["shards_waited"] = static_cast<double>(speculated.shards_waited);
}

// ------------------------------------------------------------------------------------------------------------- main

bool skipped = false;

template <class Body>
void add_row(std::string const& name, double iterations, benchmark::TimeUnit unit, Body const& body)
{
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](State& state) {
                                     try {
                                         body(state);
                                     } catch (std::exception const& error) {
                                         skipped = true;
                                         state.SkipWithError(error.what());
                                     }
                                 })
        ->Iterations(static_cast<std::int64_t>(iterations))
        ->UseManualTime()
        ->Unit(unit);
}

void add_rows(executor const& cpu, options const& chosen)
{
    auto const shards = static_cast<std::size_t>(chosen.shards);
    std::size_t const few = (shards + 3) / 4;
    // Whole blocks in every shard.
    auto const elems = [](double wanted, std::size_t cut) {
        std::size_t const least = cut * adamant::norm_block_elems;
        return std::max<std::size_t>(static_cast<std::size_t>(wanted) / least, 1) * least;
    };
    std::size_t const n = elems(chosen.elems, shards);
    std::size_t const small = elems(chosen.small_elems, few);
    constexpr int repeats = 4;
    std::string const threads = "/threads:" + std::to_string(cpu.threads());
    auto const size = [&](std::size_t count) { return "/elems:" + std::to_string(count) + threads; };
    add_row("whole" + size(n), chosen.iterations, benchmark::kMillisecond,
            [=](State& state) { whole(state, cpu, n, shards, 1); });
    add_row("whole" + size(small), 10 * chosen.iterations, benchmark::kMicrosecond,
            [=](State& state) { whole(state, cpu, small, few, repeats); });
    add_row("speculation" + size(n), chosen.iterations, benchmark::kMillisecond,
            [=](State& state) { speculation(state, cpu, n, shards, 1); });
    add_row("speculation" + size(small), 10 * chosen.iterations, benchmark::kMicrosecond,
            [=](State& state) { speculation(state, cpu, small, few, repeats); });
    add_row("overlap/by_device" + size(n), chosen.iterations, benchmark::kMillisecond,
            [=](State& state) { overlap(state, cpu, n, shards, arrival::by_device); });
    add_row("overlap/copied" + size(n), chosen.iterations, benchmark::kMillisecond,
            [=](State& state) { overlap(state, cpu, n, shards, arrival::copied); });
}

// The value of an option --key=value that has to be a number from 1 on.
bool take(std::string_view argument, std::string_view key, double& value)
{
    if (!argument.starts_with(key))
        return false;
    std::string const text(argument.substr(key.size()));
    char* end = nullptr;
    value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(value >= 1 && value <= 0x1p31))
        throw std::invalid_argument(std::string(argument) + " is not understood: give a number from 1 to 2^31");
    return true;
}

options parse(int argc, char** argv)
{
    options chosen;
    for (int i = 1; i < argc; ++i)
        if (!take(argv[i], "--elems=", chosen.elems) && !take(argv[i], "--small-elems=", chosen.small_elems) &&
            !take(argv[i], "--shards=", chosen.shards) && !take(argv[i], "--iterations=", chosen.iterations))
            throw std::invalid_argument(std::string(argv[i]) +
                                        " is not understood; there are --elems=, --small-elems=, --shards=, "
                                        "--iterations= and those that begin with --benchmark_");
    return chosen;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        benchmark::Initialize(&argc, argv);
        options const chosen = parse(argc, argv);
        executor const cpu;
        benchmark::AddCustomContext("adamant_isa", std::string(adamant::name(cpu.tier())));
        benchmark::AddCustomContext("limit_vector_bytes", std::to_string(limit::vector_bytes()));
        if (cpu.team() != nullptr)
            benchmark::AddCustomContext("pus", to_list(cpu.team()->bound_to()));
        add_rows(cpu, chosen);
        benchmark::RunSpecifiedBenchmarks();
        benchmark::Shutdown();
        return skipped ? 1 : 0;
    } catch (std::exception const& error) {
        std::fprintf(stderr, "adamant_benchmark_offload: %s\n", error.what());
        return 2;
    }
}
