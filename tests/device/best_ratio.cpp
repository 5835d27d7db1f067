// SPDX-License-Identifier: Apache-2.0
// What a step takes at a ratio, beside a simulation that knows nothing of the formulas; the best ratio, beside a scan
// of all; and how it is followed as rates change.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include <adamant/split.hpp>
#include <adamant/tune.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr forecast_row all_rows[] = {forecast_row::backward, forecast_row::down,   forecast_row::cpu,
                                     forecast_row::up,       forecast_row::device, forecast_row::forward};

std::string shown(step_rates const& r)
{
    std::string text;
    for (double const x : {r.elems, r.cpu_elems_per_s, r.device_elems_per_s, r.down_bytes_per_s, r.up_bytes_per_s,
                           r.grad_bytes, r.weight_bytes, r.backward_s, r.forward_s, r.fixed_s})
        text += detail::text_of({x}) + " ";
    return text + (r.arrays_on_device ? "device" : "host") + (r.overlaps_backward ? ", backward" : "") +
           (r.overlaps_forward ? ", forward" : "");
}

double fraction(test::random_bits& random)
{
    return static_cast<double>(random() >> 11) * 0x1p-53;
}
// From low to high, in even steps of the logarithm.
double between(double low, double high, test::random_bits& random)
{
    return low * std::pow(high / low, fraction(random));
}

// All work takes between 10 ms and 10 s, or none at all.
step_rates random_rates(test::random_bits& random)
{
    auto const now_and_then = [&](double otherwise, double x) { return random.below(6) == 0 ? otherwise : x; };
    step_rates r;
    r.elems = between(1e6, 1e11, random);
    r.cpu_elems_per_s = now_and_then(infinite, r.elems / between(0.01, 10, random));
    r.device_elems_per_s = now_and_then(infinite, r.elems / between(0.01, 10, random));
    r.grad_bytes = now_and_then(0, 1 + fraction(random) * 3);
    r.weight_bytes = now_and_then(0, 1 + fraction(random) * 3);
    r.down_bytes_per_s = now_and_then(infinite, r.elems / between(0.01, 10, random));
    r.up_bytes_per_s = now_and_then(infinite, r.elems / between(0.01, 10, random));
    r.arrays_on_device = random.below(2) == 0;
    r.backward_s = now_and_then(0, between(0.01, 10, random));
    r.forward_s = now_and_then(0, between(0.01, 10, random));
    r.fixed_s = random.below(2) == 0 ? 0 : between(0.001, 1, random);
    r.overlaps_backward = random.below(2) == 0;
    r.overlaps_forward = random.below(2) == 0;
    return r;
}

// How long everybody has work at this ratio, in the order of `forecast_row`.
std::vector<double> work(step_rates const& r, double ratio)
{
    double const crossing = r.elems * (r.arrays_on_device ? ratio : 1 - ratio);
    return {r.backward_s,
            crossing * (r.arrays_on_device ? r.grad_bytes : r.weight_bytes) / r.down_bytes_per_s,
            ratio * r.elems / r.cpu_elems_per_s,
            crossing * (r.arrays_on_device ? r.weight_bytes : r.grad_bytes) / r.up_bytes_per_s,
            (1 - ratio) * r.elems / r.device_elems_per_s,
            r.forward_s};
}

// A step in small chunks, each of which goes through the rows one after the other.
struct simulation {
    std::vector<double> ends = std::vector<double>(6); // of each row; 0 without work
    double step_s = 0;

    static constexpr std::size_t chunks = 400;
    double at(forecast_row on, double ready, double length)
    {
        double& end = ends[static_cast<std::size_t>(on)];
        if (length > 0)
            end = std::max(end, ready) + length;
        return length > 0 ? end : ready;
    }
    simulation(step_rates const& r, double ratio)
    {
        std::vector<double> each = work(r, ratio);
        for (double& length : each)
            length /= chunks;
        auto const go = [&](double ready, std::initializer_list<forecast_row> way) {
            for (forecast_row const on : way)
                ready = at(on, ready, each[static_cast<std::size_t>(on)]);
            return ready;
        };
        std::vector<double> cpu_done(chunks);
        double all_done = r.backward_s;
        for (std::size_t i = 0; i < chunks; ++i) {
            double const made = r.backward_s * ratio * static_cast<double>(i + 1) / chunks;
            double const ready = r.overlaps_backward ? made : r.backward_s;
            cpu_done[i] = r.arrays_on_device ? go(ready, {forecast_row::down, forecast_row::cpu, forecast_row::up})
                                             : go(ready, {forecast_row::cpu});
            if (ratio > 0)
                all_done = std::max(all_done, cpu_done[i]);
        }
        ends[0] = r.backward_s;
        double device_done = r.backward_s;
        for (std::size_t i = 0; i < chunks && ratio < 1; ++i)
            device_done = r.arrays_on_device
                              ? go(r.backward_s, {forecast_row::device})
                              : go(r.backward_s, {forecast_row::up, forecast_row::device, forecast_row::down});
        all_done = std::max(all_done, device_done);
        if (!r.overlaps_forward)
            step_s = all_done + r.fixed_s + r.forward_s;
        else {
            // The device's layers, and then the CPU's: the last ones whose gradients backward has made come first.
            step_s = device_done + r.fixed_s + (1 - ratio) * r.forward_s;
            for (std::size_t i = chunks; i-- > 0 && ratio > 0;)
                step_s = std::max(step_s, cpu_done[i] + r.fixed_s) + ratio * r.forward_s / chunks;
        }
        ends[5] = r.forward_s > 0 ? step_s : 0;
    }
};

// What is wrong with a forecast, for all that its timeline says; empty where nothing is.
std::string wrong_timeline(step_forecast const& f, step_rates const& r, double ratio)
{
    std::vector<double> const needed = work(r, ratio);
    double const slack = 1e-9 * f.step_s;
    std::vector<double> busy(6);
    double end = 0;
    for (forecast_span const& span : f.timeline) {
        std::string const who = name(span.row);
        if (!(span.begin_s >= 0 && span.begin_s < span.end_s && span.end_s <= f.step_s))
            return who + " is busy from " + detail::text_of({span.begin_s}) + " to " + detail::text_of({span.end_s});
        bool const after = span.row == forecast_row::device ||
                           (!r.arrays_on_device && (span.row == forecast_row::up || span.row == forecast_row::down));
        if ((after || (!r.overlaps_backward && span.row != forecast_row::backward)) &&
            span.begin_s < r.backward_s - slack)
            return who + " is busy in backward";
        if (span.row != forecast_row::forward && !r.overlaps_forward &&
            span.end_s > f.step_s - r.forward_s - r.fixed_s + slack)
            return who + " is busy in forward, or in what is fixed";
        busy[static_cast<std::size_t>(span.row)] += span.end_s - span.begin_s;
        end = std::max(end, span.end_s);
    }
    for (forecast_row const on : all_rows) {
        auto const i = static_cast<std::size_t>(on);
        if (needed[i] > 10 * slack && busy[i] < needed[i] - slack)
            return std::string(name(on)) + " is not busy for as long as it takes";
        if (needed[i] == 0 && busy[i] > 0)
            return std::string(name(on)) + " is busy with nothing";
    }
    if (std::abs(busy[0] - r.backward_s) > slack || std::abs(busy[5] - r.forward_s) > slack)
        return "backward or forward takes another time";
    if (std::abs(end + (r.forward_s > 0 ? 0 : r.fixed_s) - f.step_s) > slack)
        return "the step ends at " + detail::text_of({f.step_s}) + ", the timeline at " + detail::text_of({end});
    if (f.ratio != ratio || f.update_s < 0 || std::abs(f.update_s + r.backward_s + r.forward_s - f.step_s) > slack)
        return "ratio or update";
    return {};
}

step_rates faster(step_rates r, forecast_row which)
{
    switch (which) {
    case forecast_row::backward: r.backward_s *= 0.99; break;
    case forecast_row::down: r.down_bytes_per_s *= 1.01; break;
    case forecast_row::cpu: r.cpu_elems_per_s *= 1.01; break;
    case forecast_row::up: r.up_bytes_per_s *= 1.01; break;
    case forecast_row::device: r.device_elems_per_s *= 1.01; break;
    case forecast_row::forward: r.forward_s *= 0.99; break;
    }
    return r;
}

double some_ratio(test::random_bits& random)
{
    std::size_t const kind = random.below(10);
    return kind == 0 ? 0 : kind == 1 ? 1 : fraction(random);
}

} // namespace

TEST_CASE("a forecast takes as long as a simulation in small chunks, and its rows end when those do")
{
    test::random_bits random(1);
    for (int draw = 0; draw < 1500; ++draw) {
        step_rates const r = random_rates(random);
        double const ratio = some_ratio(random);
        INFO(shown(r) << ", ratio " << ratio);
        step_forecast const f = forecast(r, ratio);
        CHECK(wrong_timeline(f, r, ratio) == "");
        simulation const simulated(r, ratio);
        double chunk = r.backward_s + r.forward_s;
        for (double const time : work(r, ratio))
            chunk += time;
        chunk /= simulation::chunks;
        CHECK(std::abs(f.step_s - simulated.step_s) <= 2 * chunk);
        std::vector<double> ends(6);
        for (forecast_span const& span : f.timeline) {
            double& end = ends[static_cast<std::size_t>(span.row)];
            end = std::max(end, span.end_s);
        }
        for (forecast_row const on : all_rows) {
            auto const i = static_cast<std::size_t>(on);
            INFO(name(on) << " ends at " << ends[i] << ", simulated at " << simulated.ends[i]);
            CHECK(std::abs(ends[i] - simulated.ends[i]) <= 2 * chunk);
        }
    }
}

TEST_CASE("a step that is worked out by hand")
{
    step_rates r;
    r.elems = 8e9;
    r.cpu_elems_per_s = 2e9;
    r.device_elems_per_s = 40e9;
    r.down_bytes_per_s = 40e9;
    r.up_bytes_per_s = 20e9;
    r.backward_s = 1;
    r.forward_s = 0.5;
    step_forecast const half = forecast(r, 0.5);
    CHECK(half.step_s == 2.5); // the CPU's 4e9 elements take 2 s from the beginning on; then forward
    CHECK(half.update_s == 1);
    CHECK(half.bound_by == forecast_row::cpu);
    auto const spans = [](step_forecast const& f) {
        std::string text;
        for (forecast_span const& s : f.timeline)
            text += std::string(name(s.row)) + " " + detail::text_of({s.begin_s}) + " to " +
                    detail::text_of({s.end_s}) + "; ";
        return text;
    };
    CHECK(spans(half) == "backward 0 to 1; down 0 to 0.5; cpu 0 to 2; up 0 to 2; device 1 to 1.1; forward 2 to 2.5; ");
    r.overlaps_backward = false;
    CHECK(spans(forecast(r, 0.5)) ==
          "backward 0 to 1; down 1 to 1.2; cpu 1 to 3; up 1 to 3; device 1 to 1.1; forward 3 to 3.5; ");
    // The device's layers immediately, and the CPU's when its weights are there.
    r.overlaps_forward = true;
    CHECK(spans(forecast(r, 0.5)) ==
          "backward 0 to 1; down 1 to 1.2; cpu 1 to 3; up 1 to 3; device 1 to 1.1; forward 1.1 to 1.35; "
          "forward 3 to 3.25; ");
    CHECK(forecast(r, 1).step_s == 5.5);
    CHECK(forecast(r, 0).bound_by == forecast_row::device);
    // In host memory the device's part crosses the link, and its weights are what forward waits for.
    r.arrays_on_device = false;
    CHECK(spans(forecast(r, 0.5)) == "backward 0 to 1; cpu 1 to 3; up 1 to 1.4; device 1 to 1.4; down 1 to 1.4; "
                                     "forward 1.4 to 1.65; forward 3 to 3.25; ");
    CHECK(forecast(r, 0).bound_by == forecast_row::up);
    CHECK(forecast(r, 0).step_s == 2.3);
    // Nobody limits: what is left is what has to be.
    CHECK(forecast(step_rates{}, 0.5).step_s == 0);
    CHECK(forecast(step_rates{}, 0.5).timeline.empty());
    step_rates idle;
    idle.elems = 1e9;
    idle.backward_s = 2;
    idle.forward_s = 1;
    idle.fixed_s = 0.25;
    CHECK(forecast(idle, 0.5).step_s == 3.25);
    CHECK(forecast(idle, 0.5).update_s == 0.25);
    CHECK(forecast(idle, 0.5).bound_by == forecast_row::backward);
    idle.backward_s = 0;
    CHECK(forecast(idle, 0.5).bound_by == forecast_row::forward);
    CHECK(best_ratio(idle).ratio == 1);
}

TEST_CASE("what a step is bound by shortens it when it is faster")
{
    test::random_bits random(2);
    std::vector<int> bound(6);
    for (int draw = 0; draw < 4000; ++draw) {
        step_rates const r = random_rates(random);
        double const ratio = some_ratio(random);
        step_forecast const f = forecast(r, ratio);
        INFO(shown(r) << ", ratio " << ratio << ", bound by " << name(f.bound_by));
        if (f.step_s == r.fixed_s) // nobody does anything
            continue;
        ++bound[static_cast<std::size_t>(f.bound_by)];
        CHECK(forecast(faster(r, f.bound_by), ratio).step_s < f.step_s);
        for (forecast_row const other : all_rows)
            CHECK(forecast(faster(r, other), ratio).step_s <= f.step_s);
    }
    for (forecast_row const on : all_rows) {
        INFO(name(on));
        CHECK(bound[static_cast<std::size_t>(on)] > (on == forecast_row::forward ? 10 : 100));
    }
}

TEST_CASE("no ratio of ten thousand is better than the best, within bounds or without")
{
    test::random_bits random(3);
    int inside = 0;
    for (int draw = 0; draw < 1000; ++draw) {
        step_rates const r = random_rates(random);
        double least = 0, most = 1;
        if (draw % 3 == 0) {
            least = fraction(random);
            most = random.below(10) == 0 ? least : least + (1 - least) * fraction(random);
        }
        INFO(shown(r) << ", from " << least << " to " << most);
        step_forecast const best = best_ratio(r, least, most);
        CHECK((best.ratio >= least && best.ratio <= most));
        inside += best.ratio > least && best.ratio < most;
        step_forecast const same = forecast(r, best.ratio);
        CHECK((same.step_s == best.step_s && same.bound_by == best.bound_by));
        // A forecast with its timeline for one of the scans only; the lines alone for the others.
        std::vector<detail::ratio_line> const lines = detail::lines_of(r);
        double shortest = infinite;
        double last_as_good = least;
        for (int i = 0; i <= 10'000; ++i) {
            double const ratio = std::min(most, least + (most - least) * i / 10'000);
            double s = 0;
            for (detail::ratio_line const& line : lines)
                s = std::max(s, line.fixed + line.on_cpu * ratio + line.on_device * (1 - ratio));
            if (draw < 5 && i % 10 == 0 && forecast(r, ratio).step_s != s)
                FAIL_CHECK("the lines say " << s << " at " << ratio << ", the forecast another time");
            shortest = std::min(shortest, s);
            if (s <= best.step_s * (1 + 1e-13))
                last_as_good = ratio;
        }
        CHECK(best.step_s <= shortest * (1 + 1e-9));
        CHECK(best.ratio >= last_as_good - 1e-9); // the largest of those that are as good
    }
    CHECK(inside > 250);
}

TEST_CASE("of ratios as good as each other the largest is the best")
{
    step_rates r;
    r.elems = 1e9;
    r.backward_s = 3;
    r.cpu_elems_per_s = 0.25e9; // 4 s for all: 3 of them beside backward
    CHECK(best_ratio(r).ratio == 0.75);
    CHECK(best_ratio(r).step_s == 3);
    CHECK(best_ratio(r, 0, 0.5).ratio == 0.5);
    CHECK(best_ratio(r, 0.8, 0.9).ratio == 0.8);
    CHECK(best_ratio(r, 0.8, 0.9).bound_by == forecast_row::cpu);
    r.cpu_elems_per_s = 1e9;
    CHECK(best_ratio(r).ratio == 1);
    r.overlaps_backward = false;
    CHECK(best_ratio(r).ratio == 0); // the device takes no time
    r.device_elems_per_s = 3e9;
    CHECK(std::abs(best_ratio(r).ratio - 0.25) < 1e-12);
}

TEST_CASE("rates, times and ratios that cannot be are refused by name")
{
    step_rates good;
    good.elems = 1e9;
    using change = std::function<void(step_rates&, double)>;
    auto const refused = [&](change const& how, double value) {
        step_rates r = good;
        how(r, value);
        std::string const text = refusal<invalid_argument>([&] { (void)forecast(r, 0.5); });
        CHECK(refusal<invalid_argument>([&] { (void)best_ratio(r); }) == text);
        CHECK(refusal<invalid_argument>([&] { ratio_follower const follower(r); }) == text);
        return text;
    };
    std::pair<char const*, change> const rates[] = {
        {"cpu_elems_per_s is ", [](step_rates& r, double x) { r.cpu_elems_per_s = x; }},
        {"device_elems_per_s is ", [](step_rates& r, double x) { r.device_elems_per_s = x; }},
        {"down_bytes_per_s is ", [](step_rates& r, double x) { r.down_bytes_per_s = x; }},
        {"up_bytes_per_s is ", [](step_rates& r, double x) { r.up_bytes_per_s = x; }}};
    for (auto const& [what, how] : rates) {
        CHECK(mentions(refused(how, 0), {what, "is 0, but must be above 0"}));
        CHECK(mentions(refused(how, -1e-9), {what, "is -1e-09,"}));
        CHECK(mentions(refused(how, std::nan("")), {what, "nan"}));
        CHECK(mentions(refused(how, 1e-305), {"a step at these rates is inf"}));
    }
    std::pair<char const*, change> const times[] = {
        {"elems is ", [](step_rates& r, double x) { r.elems = x; }},
        {"grad_bytes is ", [](step_rates& r, double x) { r.grad_bytes = x; }},
        {"weight_bytes is ", [](step_rates& r, double x) { r.weight_bytes = x; }},
        {"backward_s is ", [](step_rates& r, double x) { r.backward_s = x; }},
        {"forward_s is ", [](step_rates& r, double x) { r.forward_s = x; }},
        {"fixed_s is ", [](step_rates& r, double x) { r.fixed_s = x; }}};
    for (auto const& [what, how] : times) {
        CHECK(mentions(refused(how, -0.5), {what, "is -0.5, but must be a finite number, 0 or above"}));
        CHECK(mentions(refused(how, infinite), {what, "inf"}));
        CHECK(mentions(refused(how, std::nan("")), {what, "nan"}));
    }
    for (double const ratio : {-1e-9, 1.5, infinite, std::nan("")})
        CHECK(mentions(refusal<invalid_argument>([&] { (void)forecast(good, ratio); }), {"ratio is ", "CPU's share"}));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)forecast(good, -1e-9); }), {"-1e-09"}));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)best_ratio(good, 0.6, 0.5); }), {"from 0.6 to 0.5"}));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)best_ratio(good, -0.1, 0.5); }), {"from -0.1 to 0.5"}));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)best_ratio(good, 0.1, 1.5); }), {"from 0.1 to 1.5"}));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)best_ratio(good, std::nan(""), 1); }), {"nan"}));

    auto const options = [&](follower_options const& o) {
        return refusal<invalid_argument>([&] { ratio_follower const follower(good, o); });
    };
    for (double const weight : {0.0, -0.1, 1.1, std::nan("")})
        CHECK(mentions(options({weight, 0.02, 0, 1}), {"weight of a measurement is", "above 0"}));
    for (double const worth : {-0.1, 1.0, infinite, std::nan("")})
        CHECK(mentions(options({0.2, worth, 0, 1}), {"worth is", "share of the step"}));
    CHECK(mentions(options({0.2, 0.02, 0.7, 0.3}), {"from 0.7 to 0.3"}));
    CHECK(options({1, 0, 0.3, 0.3}) == "no exception");
}

namespace {

// What an optimizer would report of a step.
measured_step measured(step_rates const& truth, double ratio)
{
    std::vector<double> const busy = work(truth, ratio);
    double const crossing = truth.elems * (truth.arrays_on_device ? ratio : 1 - ratio);
    measured_step m;
    m.cpu_elems = ratio * truth.elems;
    m.cpu_s = busy[2];
    m.device_elems = (1 - ratio) * truth.elems;
    m.device_s = busy[4];
    m.down_bytes = crossing * (truth.arrays_on_device ? truth.grad_bytes : truth.weight_bytes);
    m.down_s = busy[1];
    m.up_bytes = crossing * (truth.arrays_on_device ? truth.weight_bytes : truth.grad_bytes);
    m.up_s = busy[3];
    return m;
}
// Rates of which the best ratio is some way from either end, so that both sides are measured.
step_rates rates_for_both(test::random_bits& random)
{
    step_rates r;
    r.elems = 1e9;
    r.cpu_elems_per_s = between(0.3e9, 3e9, random);
    r.device_elems_per_s = between(1e9, 10e9, random);
    r.down_bytes_per_s = between(5e9, 50e9, random);
    r.up_bytes_per_s = between(5e9, 50e9, random);
    r.arrays_on_device = random.below(2) == 0;
    r.backward_s = 0.3;
    r.forward_s = 0.1;
    r.overlaps_backward = false;
    return r;
}

} // namespace

TEST_CASE("the best ratio is followed when the rates change, and nothing is proposed when they do not")
{
    test::random_bits random(4);
    int changes = 0;
    for (int draw = 0; draw < 100; ++draw) {
        step_rates truth = rates_for_both(random);
        step_rates guess = truth;
        guess.cpu_elems_per_s *= between(0.1, 10, random);
        guess.device_elems_per_s *= between(0.1, 10, random);
        guess.down_bytes_per_s = infinite;
        follower_options options;
        options.least = 0.05;
        options.most = 0.95;
        ratio_follower follower(guess, options);
        double ratio = 0.5;
        for (int phase = 0; phase < 3; ++phase) {
            int last_change = -1;
            for (int step = 0; step < 100; ++step) {
                follower.observe(measured(truth, ratio));
                if (std::optional<double> const next = follower.proposal(ratio)) {
                    CHECK((*next >= options.least && *next <= options.most));
                    CHECK(forecast(follower.rates(), *next).step_s <
                          forecast(follower.rates(), ratio).step_s * (1 - options.worth));
                    ratio = *next;
                    last_change = step;
                    ++changes;
                }
            }
            INFO(shown(truth) << ", phase " << phase << ", ratio " << ratio);
            CHECK(forecast(truth, ratio).step_s <= best_ratio(truth, 0.05, 0.95).step_s * 1.021);
            CHECK(last_change < 80);                 // and then it stays
            CHECK((phase != 0 || last_change <= 0)); // the first measurement takes the place of the guess
            truth.cpu_elems_per_s *= between(0.5, 2, random);
            truth.up_bytes_per_s *= between(0.5, 2, random);
            truth.device_elems_per_s *= between(0.5, 2, random);
        }
    }
    CHECK(changes > 200);
}

TEST_CASE("a ratio is proposed where it makes the step shorter by what is worth it, and not for less")
{
    step_rates r;
    r.elems = 1e9;
    r.cpu_elems_per_s = 1e9;
    r.device_elems_per_s = 1e9;
    r.overlaps_backward = false; // at a ratio of 0.5 + x the step takes as long
    auto const proposal = [&](double worth, double ratio) {
        return ratio_follower(r, {0.2, worth, 0, 1}).proposal(ratio);
    };
    CHECK(!proposal(0.02, 0.5));
    CHECK(!proposal(0.02, 0.5101)); // 0.5 / 0.5101 is 0.9802
    CHECK(!proposal(0.02, 0.4899));
    REQUIRE(proposal(0.02, 0.5103));
    CHECK(*proposal(0.02, 0.5103) == 0.5);
    CHECK(proposal(0.02, 0.4897));
    CHECK(!proposal(0, 0.5));
    CHECK(proposal(0, 0.5001));
    CHECK(!proposal(0.5, 0.9999));
    CHECK(proposal(0.49, 0.9999));
    CHECK(mentions(refusal<invalid_argument>([&] { (void)proposal(0.02, 1.5); }), {"ratio is 1.5"}));
    ratio_follower const bound(r, {0.2, 0.02, 0.6, 0.9});
    CHECK(*bound.proposal(0.9) == 0.6);
    CHECK(!bound.proposal(0.6));
}

TEST_CASE("times are averaged, the first takes the guess's place, and what was not measured stays")
{
    step_rates r;
    r.elems = 1e9;
    r.cpu_elems_per_s = 7e9;
    ratio_follower follower(r, {0.25, 0.02, 0, 1});
    follower.observe({.cpu_elems = 4e8, .cpu_s = 0.4});
    CHECK(std::abs(follower.rates().cpu_elems_per_s / 1e9 - 1) < 1e-12);
    follower.observe({.cpu_elems = 1e8, .cpu_s = 0.3});
    CHECK(std::abs(follower.rates().cpu_elems_per_s / (1e9 / 1.5) - 1) < 1e-12); // 1 ns and a quarter of 2 ns more
    CHECK(follower.rates().device_elems_per_s == infinite);
    follower.observe({.device_elems = 5, .device_s = 2, .down_bytes = 6, .down_s = 4, .up_bytes = 7, .up_s = 1});
    CHECK(std::abs(follower.rates().device_elems_per_s - 2.5) < 1e-12);
    CHECK(std::abs(follower.rates().down_bytes_per_s - 1.5) < 1e-12);
    CHECK(std::abs(follower.rates().up_bytes_per_s - 7) < 1e-12);
    CHECK(std::abs(follower.rates().cpu_elems_per_s / (1e9 / 1.5) - 1) < 1e-12);
    follower.set_times(3, 2);
    CHECK(follower.rates().backward_s == 3);
    CHECK(follower.rates().forward_s == 2);
    CHECK(mentions(refusal<invalid_argument>([&] { follower.set_times(1, -1); }), {"forward_s is -1"}));
    CHECK(mentions(refusal<invalid_argument>([&] { follower.set_times(std::nan(""), 1); }), {"backward_s is "}));
    CHECK(follower.rates().backward_s == 3); // as it was
}

TEST_CASE("measurements that are no numbers above 0 count for nothing")
{
    test::random_bits random(5);
    step_rates const r = rates_for_both(random);
    double const good[] = {1e9, 0.5};
    for (bool const measured_before : {false, true})
        for (double const bad : {0.0, -0.0, -1.0, std::nan(""), infinite, -infinite})
            for (bool const amount : {false, true}) {
                ratio_follower follower(r);
                if (measured_before)
                    follower.observe(measured(r, 0.5));
                step_rates const before = follower.rates();
                double const n = amount ? bad : good[0];
                double const s = amount ? good[1] : bad;
                INFO(n << " in " << s << " s");
                follower.observe({n, s, n, s, n, s, n, s});
                follower.observe({n, bad, bad, s, bad, bad, n, s});
                CHECK(follower.rates().cpu_elems_per_s == before.cpu_elems_per_s);
                CHECK(follower.rates().device_elems_per_s == before.device_elems_per_s);
                CHECK(follower.rates().down_bytes_per_s == before.down_bytes_per_s);
                CHECK(follower.rates().up_bytes_per_s == before.up_bytes_per_s);
                CHECK_NOTHROW(follower.proposal(0.5));
            }
}
