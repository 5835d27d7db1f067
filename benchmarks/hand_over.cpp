// SPDX-License-Identifier: Apache-2.0
// Handing work to the team and hearing that it is done, without any work. No bytes are moved; the limit is a ball of
// one cache line that is thrown to one other thread and back.
//
//   hand_over/request/threads:T     an empty request to a team that is awake, against a ball to a thread that is
//   hand_over/asleep/threads:T      the same after a pause in which all have gone to sleep, and what an idle team takes
//                                   of the CPU meanwhile
//   hand_over/make_team/threads:T   making and ending a team, against that many plain threads

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include <adamant/team.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/exec/team_state.hpp>
#include <adamant/detail/topology/allowed.hpp>

#include "race.hpp"
#include "rows.hpp"

namespace bench {

namespace {

using benchmark::State;
using race::contender;
using race::part_in_race;
using clock_type = std::chrono::steady_clock;

double cpu_seconds()
{
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

// A number that two threads raise in turn. Who waits spins first, and then sleeps, as a team's threads do.
class ball {
public:
    explicit ball(unsigned pu) : partner_([this, pu] { serve(pu); })
    {
        play(); // the partner is there
    }
    ~ball()
    {
        stop_ = true;
        count_.fetch_add(1);
        count_.notify_one();
        partner_.join();
    }
    ball(ball const&) = delete;
    ball& operator=(ball const&) = delete;

    // There and back.
    void play()
    {
        unsigned const mine = count_.load(std::memory_order_relaxed);
        throw_it(mine + 1);
        wait_while(mine + 1);
    }

private:
    void serve(unsigned pu)
    {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        CPU_SET(pu, &mask);
        (void)sched_setaffinity(0, sizeof mask, &mask);
        for (unsigned seen = 0; !stop_; seen += 2) {
            wait_while(seen);
            throw_it(seen + 2);
        }
    }
    void throw_it(unsigned next)
    {
        count_.store(next, std::memory_order_release);
        count_.notify_one(); // enters the kernel if a thread sleeps
    }
    void wait_while(unsigned value)
    {
        auto const asleep_at = clock_type::now() + std::chrono::microseconds(50);
        for (unsigned spins = 1; count_.load(std::memory_order_acquire) == value; ++spins) {
            adamant::detail::relax();
            if (spins % 32 != 0)
                continue;
            sched_yield(); // the other may want this very PU
            if (clock_type::now() > asleep_at)
                count_.wait(value, std::memory_order_acquire);
        }
    }

    alignas(64) std::atomic<unsigned> count_{0};
    std::atomic<bool> stop_{false};
    std::thread partner_;
};

void count_times(State& state, std::vector<double> const& times)
{
    state.counters["p10_us"] = adamant::quantile(times, 0.1) * 1e6;
    state.counters["p90_us"] = adamant::quantile(times, 0.9) * 1e6;
    state.counters["p99_us"] = adamant::quantile(times, 0.99) * 1e6;
}

// Each request is timed, and a round's time is their median: some are interrupted.
void request(State& state, unsigned threads)
{
    constexpr int requests = 1000;
    adamant::pu_set const pus = adamant::detail::select_pus(threads);
    adamant::team team({.pus = pus, .threads = threads});
    ball other(pus.members().back());
    std::vector<double> times;
    auto const median_of = [&](auto const& run) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1)); // past the spinning of the contender before
        times.clear();
        for (int i = 0; i < requests; ++i) {
            auto const start = clock_type::now();
            run();
            times.push_back(race::seconds_since(start));
        }
        return adamant::median(times);
    };
    std::vector<contender> all{{part_in_race::subject, "hand_over", "", {}},
                               {part_in_race::limit, "an atomic ball between two threads", "", {}}};
    std::vector<double> every;
    bool ball_first = false;
    for (auto _ : state) {
        ball_first = !ball_first;
        if (ball_first)
            all[1].seconds.push_back(median_of([&] { other.play(); }));
        all[0].seconds.push_back(median_of([&] { team.run([](unsigned) {}); }));
        every.insert(every.end(), times.begin(), times.end());
        if (!ball_first)
            all[1].seconds.push_back(median_of([&] { other.play(); }));
        state.SetIterationTime(all[0].seconds.back());
    }
    report(state, all, {});
    count_times(state, every);
}

void asleep(State& state, unsigned threads)
{
    adamant::pu_set const pus = adamant::detail::select_pus(threads);
    adamant::team team({.pus = pus, .threads = threads});
    ball other(pus.members().back());
    double idle_cpu = 0;
    double idle = 0;
    auto const rest = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1)); // past the spinning
        double const cpu_before = cpu_seconds();
        auto const start = clock_type::now();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        idle += race::seconds_since(start);
        idle_cpu += cpu_seconds() - cpu_before;
    };
    std::vector<contender> all{
        {part_in_race::subject, "hand_over", "", [&] { team.run([](unsigned) {}); }, rest},
        {part_in_race::limit, "an atomic ball to a thread that sleeps", "", [&] { other.play(); }, rest}};
    race::run(state, all);
    report(state, all, {});
    count_times(state, all[0].seconds);
    state.counters["idle_cpu_percent"] = 100 * idle_cpu / idle;
}

void make_team(State& state, unsigned threads)
{
    adamant::pu_set const pus = adamant::detail::select_pus(threads);
    std::vector<contender> all{
        {part_in_race::subject, "make_team", "", [&] { adamant::team const team({.pus = pus, .threads = threads}); }},
        {part_in_race::limit, "plain threads", "", [&] {
             std::vector<std::thread> plain;
             for (unsigned i = 0; i < threads; ++i)
                 plain.emplace_back([] {});
             for (std::thread& each : plain)
                 each.join();
         }}};
    race::run(state, all);
    report(state, all, {});
}

} // namespace

void add_hand_over(setup const& given)
{
    std::int64_t const rounds = rounds_for(given.chosen, 1);
    for (adamant::executor const& cpu : given.cpus) {
        unsigned const threads = cpu.threads();
        auto const add = [&](char const* what, void (*run)(State&, unsigned)) {
            add_row("hand_over/" + std::string(what) + "/threads:" + std::to_string(threads), rounds,
                    [threads, run](State& state) { run(state, threads); });
        };
        add("request", request);
        add("asleep", asleep);
        add("make_team", make_team);
    }
}

} // namespace bench
