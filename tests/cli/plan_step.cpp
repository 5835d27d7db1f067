// SPDX-License-Identifier: Apache-2.0
// The time of a step by `adamant plan`: beside the library's forecast, and over what the journal has room for.

#include <algorithm>
#include <cmath>
#include <random>

#include <catch.hpp>

#include <adamant/split.hpp>

#include "../../tools/adamant/plan_step.hpp"

using namespace adamant;
using cli::speculation_rates;

namespace {

speculation_rates random_rates(std::mt19937_64& random)
{
    auto const between = [&](double least, double most) {
        return least * std::pow(most / least, std::uniform_real_distribution<>()(random));
    };
    speculation_rates r;
    r.rates.elems = between(1e8, 1e11);
    r.rates.cpu_elems_per_s = between(1e8, 1e11);
    r.rates.device_elems_per_s = between(1e9, 1e12);
    r.rates.down_bytes_per_s = between(1e9, 1e12);
    r.rates.up_bytes_per_s = between(1e9, 1e12);
    r.rates.backward_s = random() % 4 == 0 ? 0 : between(0.01, 10);
    r.rates.forward_s = random() % 4 == 0 ? 0 : between(0.01, 10);
    r.rates.overlaps_forward = random() % 2 == 0;
    r.record_cost = between(0.1, 0.34);
    r.measured_elems_per_s = 14 * r.rates.cpu_elems_per_s;
    r.device_speculates = random() % 2 == 0;
    return r;
}

} // namespace

TEST_CASE("more room for records never makes a step longer")
{
    std::mt19937_64 random(1);
    bool shortened = false;
    for (int i = 0; i < 300; ++i) {
        speculation_rates r = random_rates(random);
        for (double const ratio : {0.0, 0.2, 0.5, 0.9, 1.0}) {
            double before = 0;
            for (double const share : {0.0, 0.1, 0.25, 0.5, 0.75, 1.0}) {
                r.speculative_share = share;
                double const s = cli::forecast_step(r, ratio).step_s;
                if (share > 0) {
                    CHECK(s <= before * (1 + 1e-9));
                    shortened = shortened || s < before * 0.99;
                }
                before = s;
            }
        }
        double before = 0;
        for (double const share : {0.0, 0.25, 0.5, 1.0}) { // the chosen ratio's time, too
            r.speculative_share = share;
            double const s = cli::best_step(r, 0.1, 1).step_s;
            CHECK((share == 0 || s <= before * (1 + 1e-9)));
            before = s;
        }
    }
    CHECK(shortened);
}

TEST_CASE("without room every update waits for the norm")
{
    std::mt19937_64 random(2);
    for (int i = 0; i < 300; ++i) {
        speculation_rates r = random_rates(random);
        r.speculative_share = 0;
        r.device_speculates = false;
        r.rates.overlaps_forward = false;
        for (double const ratio : {0.1, 0.5, 1.0}) {
            step_forecast const step = cli::forecast_step(r, ratio);
            step_rates const& s = r.rates;
            double const norm = std::max({s.backward_s, ratio * s.elems * s.grad_bytes / s.down_bytes_per_s,
                                          ratio * s.elems / r.measured_elems_per_s});
            double const cpu = ratio * s.elems / s.cpu_elems_per_s;
            double const up = ratio * s.elems * s.weight_bytes / s.up_bytes_per_s;
            double const device = (1 - ratio) * s.elems / s.device_elems_per_s;
            CHECK(step.step_s == Approx(norm + std::max({cpu, up, device}) + s.forward_s).epsilon(1e-12));
            for (forecast_span const& span : step.timeline)
                if (span.row == forecast_row::up || span.row == forecast_row::device)
                    CHECK(span.begin_s >= norm * (1 - 1e-12));
        }
    }
}

TEST_CASE("with room for free records a step is the library's forecast")
{
    std::mt19937_64 random(3);
    for (int i = 0; i < 300; ++i) {
        speculation_rates r = random_rates(random);
        r.record_cost = 0;
        r.device_speculates = true;
        for (double const ratio : {0.0, 0.3, 1.0})
            CHECK(cli::forecast_step(r, ratio).step_s == Approx(forecast(r.rates, ratio).step_s).epsilon(1e-9));
        CHECK(cli::best_step(r, 0, 1).step_s == Approx(best_ratio(r.rates, 0, 1).step_s).epsilon(1e-9));
    }
}

TEST_CASE("no other ratio has a shorter step than the best")
{
    std::mt19937_64 random(4);
    for (int i = 0; i < 100; ++i) {
        speculation_rates r = random_rates(random);
        r.speculative_share = std::uniform_real_distribution<>()(random);
        double const best = cli::best_step(r, 0.05, 0.95).step_s;
        for (int k = 0; k <= 30; ++k)
            CHECK(best <= cli::forecast_step(r, 0.05 + 0.03 * k).step_s * (1 + 1e-9));
    }
}
