// SPDX-License-Identifier: Apache-2.0
// What the team costs and what it is good for: handing work over, many shards, a core that is taken by somebody else,
// and memory in large pages that is first touched by its users.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <adamant/adamant.hpp>

#include "race.hpp"

namespace {

using adamant::bfloat16;
using adamant::buffer;
using adamant::executor;
using adamant::slice;
using benchmark::State;
using race::part_in_race;

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point start)
{
    return std::chrono::duration<double>(clock_type::now() - start).count();
}

double cpu_seconds()
{
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

adamant::coefficients adamw()
{
    return adamant::make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = adamant::decay_mode::decoupled}, 1000);
}

// Median of the subject over that of the reference, within rounds.
void count_ratio(State& state, std::vector<race::contender> const& contenders, double elements)
{
    race::contender const& subject = contenders[0];
    race::contender const& reference = contenders[1];
    std::vector<double> ratios;
    for (std::size_t i = 0; i < subject.seconds.size(); ++i)
        ratios.push_back(subject.seconds[i] / reference.seconds[i]);
    state.counters[subject.name + "_ns"] = race::median(subject.seconds) * 1e9 / elements;
    state.counters[reference.name + "_ns"] = race::median(reference.seconds) * 1e9 / elements;
    state.counters["ratio"] = race::median(ratios);
    state.counters["ratio_p10"] = race::quantile(ratios, 0.1);
    state.counters["ratio_p90"] = race::quantile(ratios, 0.9);
}

// n elements: float params and moments with bfloat16 gradients and weights, or all bfloat16.
template <class State>
struct training {
    static constexpr bool mixed = std::is_same_v<State, float>;
    buffer<State> param, exp_avg, exp_avg_sq;
    buffer<bfloat16> grad, weight_out;

    training(executor const& touched_by, std::size_t n, adamant::memory_options const& memory)
        : param(make_buffer<State>(touched_by, n, memory)), exp_avg(make_buffer<State>(touched_by, n, memory)),
          exp_avg_sq(make_buffer<State>(touched_by, n, memory)), grad(make_buffer<bfloat16>(touched_by, n, memory)),
          weight_out(make_buffer<bfloat16>(touched_by, mixed ? n : 0, memory))
    {
        touched_by.for_each_home(n, [&](slice part) {
            for (std::size_t i = part.begin; i < part.end; ++i) {
                auto const spread = static_cast<float>(i * 2654435761u % 1024 + 1);
                param[i] = adamant::narrow<State>(1e-4f * spread);
                exp_avg[i] = adamant::narrow<State>(1e-6f * spread);
                exp_avg_sq[i] = adamant::narrow<State>(1e-9f * spread);
                grad[i] = adamant::narrow<bfloat16>(1e-5f * spread);
            }
        });
    }
    auto shard(std::size_t begin, std::size_t n)
    {
        if constexpr (mixed)
            return adamant::shard(param.data() + begin, grad.data() + begin, exp_avg.data() + begin,
                                  exp_avg_sq.data() + begin, weight_out.data() + begin, n);
        else
            return adamant::shard(param.data() + begin, grad.data() + begin, exp_avg.data() + begin,
                                  exp_avg_sq.data() + begin, n);
    }
    [[nodiscard]] std::size_t size() const { return param.size(); }
};

constexpr std::size_t shard_count = 10000;
constexpr std::size_t shard_elems = 4096;

// An empty request to the team and back.
void hand_over(State& state, unsigned threads)
{
    adamant::team team({.pus = adamant::detail::pus_for(threads), .threads = threads});
    std::vector<double> times;
    for (auto _ : state) {
        auto const start = clock_type::now();
        team.run([](unsigned) {});
        times.push_back(seconds_since(start));
        state.SetIterationTime(times.back());
    }
    state.counters["median_us"] = race::median(times) * 1e6;
    state.counters["p10_us"] = race::quantile(times, 0.1) * 1e6;
    state.counters["p90_us"] = race::quantile(times, 0.9) * 1e6;
    state.counters["p99_us"] = race::quantile(times, 0.99) * 1e6;
}

// The same after a pause in which the threads have gone to sleep; and what they use of the CPU meanwhile.
void hand_over_asleep(State& state, unsigned threads)
{
    adamant::team team({.pus = adamant::detail::pus_for(threads), .threads = threads});
    std::vector<double> times;
    double idle_cpu = 0;
    double idle = 0;
    for (auto _ : state) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1)); // past the spinning
        double const cpu_before = cpu_seconds();
        auto const idle_start = clock_type::now();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        idle += seconds_since(idle_start);
        idle_cpu += cpu_seconds() - cpu_before;
        auto const start = clock_type::now();
        team.run([](unsigned) {});
        times.push_back(seconds_since(start));
        state.SetIterationTime(times.back());
    }
    state.counters["median_us"] = race::median(times) * 1e6;
    state.counters["p10_us"] = race::quantile(times, 0.1) * 1e6;
    state.counters["p90_us"] = race::quantile(times, 0.9) * 1e6;
    state.counters["idle_cpu_percent"] = 100 * idle_cpu / idle;
}

// How ten thousand shards lie in memory: as stretches of flat arrays, in their order or in any; or each tensor's five
// arrays in allocations of their own, as a program of many tensors has them.
enum class layout { adjacent, separate, shuffled };

// Five allocations.
struct tensor {
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight_out;

    explicit tensor(std::size_t n)
        : param(n, 1e-3f), exp_avg(n, 1e-6f), exp_avg_sq(n, 1e-9f), grad(n, adamant::narrow<bfloat16>(1e-5f)),
          weight_out(n)
    {
    }
    auto shard() { return adamant::shard(param, grad, exp_avg, exp_avg_sq, weight_out); }
};

// Ten thousand shards against one of the same total.
void many_shards(State& state, executor const& cpu, layout where)
{
    training<float> flat(cpu, shard_count * shard_elems, {});
    std::vector<tensor> tensors;
    std::vector<adamant::any_shard> parts;
    if (where == layout::separate) {
        tensors.reserve(shard_count);
        for (std::size_t i = 0; i < shard_count; ++i) {
            tensors.emplace_back(shard_elems);
            parts.push_back(tensors.back().shard());
        }
    } else {
        for (std::size_t i = 0; i < shard_count; ++i)
            parts.push_back(flat.shard(i * shard_elems, shard_elems));
    }
    if (where == layout::shuffled)
        std::shuffle(parts.begin(), parts.end(), std::minstd_rand(1));
    adamant::shard_list const list(parts);
    auto const whole = flat.shard(0, flat.size());
    adamant::coefficients const c = adamw();
    std::vector<race::contender> contenders;
    contenders.push_back({part_in_race::subject, "many", [&] { adamant::step(cpu, list, std::span(&c, 1)); }});
    contenders.push_back({part_in_race::reference, "one", [&] { adamant::step(cpu, whole, c); }});
    race::run(state, contenders, 1);
    count_ratio(state, contenders, static_cast<double>(flat.size()));
}

// A process that keeps a PU busy, as long as this object lives.
class busy_process {
public:
    explicit busy_process(unsigned pu) : child_(fork())
    {
        if (child_ < 0)
            throw std::runtime_error(std::string("a busy process could not be started: ") + std::strerror(errno));
        if (child_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            cpu_set_t mask;
            CPU_ZERO(&mask);
            CPU_SET(pu, &mask);
            if (sched_setaffinity(0, sizeof mask, &mask) != 0)
                _exit(1);
            for (std::uint64_t volatile work = 0;;)
                work = work + 1;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ~busy_process()
    {
        kill(child_, SIGKILL);
        waitpid(child_, nullptr, 0);
    }
    busy_process(busy_process const&) = delete;
    busy_process& operator=(busy_process const&) = delete;

private:
    pid_t child_;
};

// One of the team's PUs is wanted by another process: the step, whose chunks others take, against an even split. Long
// enough that a few milliseconds at the end, when all may wait for the thread that has to wait for its PU, do not
// decide.
template <class Element>
void busy_core(State& state, executor const& cpu)
{
    training<Element> all(cpu, 4 * shard_count * shard_elems, {});
    auto const whole = all.shard(0, all.size());
    adamant::coefficients const c = adamw();
    adamant::kernel::step_function const run = adamant::any_shard(whole).step_for(cpu.tier());
    busy_process const neighbour(cpu.team()->bound_to().members().back());
    std::vector<race::contender> contenders;
    contenders.push_back({part_in_race::subject, "step", [&] { adamant::step(cpu, whole, c); }});
    contenders.push_back(
        {part_in_race::reference, "even_split", [&] {
             cpu.for_each_home(all.size(), [&](slice part) { run(whole.pointers(), part.begin, part.end, c, true); });
         }});
    race::run(state, contenders, 1);
    count_ratio(state, contenders, static_cast<double>(all.size()));
}

// Memory of one kind against another: `subject` and `reference` say how each is allocated and touched.
void memory(State& state, executor const& cpu, std::pair<char const*, adamant::page_kind> subject,
            std::pair<char const*, adamant::page_kind> reference, bool subject_touched_by_one)
{
    executor const one({.tier = cpu.tier(), .threads = 1});
    std::size_t const n = shard_count * shard_elems;
    training<float> first(subject_touched_by_one ? one : cpu, n, {.pages = subject.second});
    training<float> second(cpu, n, {.pages = reference.second});
    adamant::coefficients const c = adamw();
    std::vector<race::contender> contenders;
    contenders.push_back({part_in_race::subject, subject.first, [&] { adamant::step(cpu, first.shard(0, n), c); }});
    contenders.push_back(
        {part_in_race::reference, reference.first, [&] { adamant::step(cpu, second.shard(0, n), c); }});
    race::run(state, contenders, 1);
    count_ratio(state, contenders, static_cast<double>(n));
    adamant::memory_placement const placed = measure(first.param.block());
    adamant::memory_placement const other = measure(second.param.block());
    state.counters["huge_percent"] =
        100.0 * static_cast<double>(placed.huge_bytes) / static_cast<double>(placed.resident_bytes);
    state.counters["huge_percent_reference"] =
        100.0 * static_cast<double>(other.huge_bytes) / static_cast<double>(other.resident_bytes);
}

template <class Body>
void add_row(std::string const& name, std::int64_t iterations, benchmark::TimeUnit unit, Body const& body)
{
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](State& state) {
                                     try {
                                         body(state);
                                     } catch (std::exception const& error) {
                                         state.SkipWithError(error.what());
                                     }
                                 })
        ->Iterations(iterations)
        ->UseManualTime()
        ->Unit(unit);
}

void add_rows(executor const& cpu)
{
    using adamant::page_kind;
    std::set<unsigned> const sizes{1, 2, cpu.threads()};
    for (unsigned const threads : sizes) {
        add_row("hand_over/threads:" + std::to_string(threads), 100000, benchmark::kMicrosecond,
                [=](State& state) { hand_over(state, threads); });
        add_row("hand_over_asleep/threads:" + std::to_string(threads), 200, benchmark::kMicrosecond,
                [=](State& state) { hand_over_asleep(state, threads); });
    }
    for (auto const& [where, name] :
         {std::pair{layout::adjacent, "adjacent"}, {layout::separate, "separate"}, {layout::shuffled, "shuffled"}})
        add_row(std::string("shards/") + name, 41, benchmark::kMillisecond,
                [=, where = where](State& state) { many_shards(state, cpu, where); });
    if (cpu.threads() > 1) {
        add_row("busy_core/mixed", 41, benchmark::kMillisecond, [=](State& state) { busy_core<float>(state, cpu); });
        add_row("busy_core/bf16", 41, benchmark::kMillisecond, [=](State& state) { busy_core<bfloat16>(state, cpu); });
    }
    add_row("pages", 41, benchmark::kMillisecond, [=](State& state) {
        memory(state, cpu, {"huge", page_kind::transparent}, {"small", page_kind::normal}, false);
    });
    add_row("first_touch", 41, benchmark::kMillisecond, [=](State& state) {
        memory(state, cpu, {"by_one", page_kind::transparent}, {"by_team", page_kind::transparent}, true);
    });
}

} // namespace

int main(int argc, char** argv)
{
    try {
        benchmark::Initialize(&argc, argv);
        if (benchmark::ReportUnrecognizedArguments(argc, argv))
            return 2;
        executor const cpu;
        benchmark::AddCustomContext("adamant_isa", std::string(adamant::name(cpu.tier())));
        if (cpu.team() != nullptr)
            benchmark::AddCustomContext("pus", to_list(cpu.team()->bound_to()));
        add_rows(cpu);
        benchmark::RunSpecifiedBenchmarks();
        benchmark::Shutdown();
        return 0;
    } catch (std::exception const& error) {
        std::fprintf(stderr, "adamant_benchmark_team: %s\n", error.what());
        return 2;
    }
}
