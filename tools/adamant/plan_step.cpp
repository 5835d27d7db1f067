// SPDX-License-Identifier: Apache-2.0
// Definitions of plan_step.hpp. The time is the maximum of linear functions of two numbers, the ratio and the share of
// all elements that is stepped before the norm is known. It is convex in both, so bisection finds the best of each.

#include "plan_step.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <adamant/split.hpp>

namespace cli {

namespace {

using namespace adamant;

struct candidate {
    forecast_row bound_by;
    double seconds;
};

// The times of one split.
class timed_split {
public:
    timed_split(speculation_rates const& r, double ratio, double early) : r_(r), ratio_(ratio), early_(early)
    {
        step_rates const& rates = r.rates;
        detail::whole_times const all = detail::times_of_all(rates);
        double const begin = rates.overlaps_backward ? 0 : rates.backward_s;
        late_ = ratio - early;
        down_ = begin + ratio * all.down;
        first_pass_ = begin + early * all.cpu * (1 + r.record_cost) + late_ * rates.elems / r.measured_elems_per_s;
        norm_ = {{rates.backward_s > 0 ? forecast_row::backward : forecast_row::forward, rates.backward_s},
                 {forecast_row::down, down_},
                 {forecast_row::cpu, first_pass_}};
        for (candidate const& item : norm_)
            norm_s_ = std::max(norm_s_, item.seconds);
        cpu_late_s_ = late_ * all.cpu;
        up_s_ = begin + ratio * all.up;
        up_late_s_ = late_ * all.up;
        device_s_ = (1 - ratio) * all.device;
    }

    // The longest of the chains of work that end a step, with forward; of several equal ones the first.
    [[nodiscard]] candidate longest() const
    {
        step_rates const& rates = r_.rates;
        double const after_cpu = rates.fixed_s + (rates.overlaps_forward ? ratio_ : 1) * rates.forward_s;
        double const after_device = rates.fixed_s + rates.forward_s;
        candidate result{norm_.front().bound_by, rates.backward_s + after_device};
        auto const consider = [&](forecast_row row, double seconds) {
            if (seconds > result.seconds * (1 + 1e-12)) // ignores differences by rounding
                result.bound_by = row;
            result.seconds = std::max(result.seconds, seconds);
        };
        for (candidate const& item : norm_) {
            consider(item.bound_by,
                     item.seconds + (item.bound_by == forecast_row::backward ? after_device : after_cpu));
            if (late_ > 0) {
                consider(forecast_row::cpu, item.seconds + cpu_late_s_ + after_cpu);
                consider(forecast_row::up, item.seconds + up_late_s_ + after_cpu);
            }
            if (ratio_ < 1 && !r_.device_speculates)
                consider(forecast_row::device, item.seconds + device_s_ + after_device);
        }
        consider(forecast_row::up, up_s_ + after_cpu);
        consider(forecast_row::device, rates.backward_s + device_s_ + after_device);
        return result;
    }

    [[nodiscard]] step_forecast forecast() const
    {
        step_rates const& rates = r_.rates;
        candidate const last = longest();
        step_forecast result;
        result.ratio = ratio_;
        result.step_s = last.seconds;
        result.update_s = std::max(0.0, last.seconds - rates.backward_s - rates.forward_s);
        result.bound_by = last.bound_by;
        auto const add_span = [&](forecast_row row, double begin, double end) {
            if (end > begin)
                result.timeline.push_back({row, begin, end});
        };
        double const begin = rates.overlaps_backward ? 0 : rates.backward_s;
        double const last_grad = std::max(begin, ratio_ * rates.backward_s); // the CPU's last gradient
        add_span(forecast_row::backward, 0, rates.backward_s);
        double const down = std::max(last_grad, down_);
        if (ratio_ > 0 && down_ > begin)
            add_span(forecast_row::down, begin, down);
        double up = begin;
        if (ratio_ > 0 && early_ > 0) {
            double const cpu_end = std::max(down, first_pass_);
            add_span(forecast_row::cpu, begin, cpu_end);
            up = std::max(cpu_end, begin + (up_s_ - begin) * early_ / ratio_);
            if (up_s_ > begin)
                add_span(forecast_row::up, begin, up);
        } else if (first_pass_ > down) { // the norm takes longer than the transfer of gradients
            add_span(forecast_row::cpu, begin, first_pass_);
        }
        if (late_ > 0) {
            add_span(forecast_row::cpu, norm_s_, norm_s_ + cpu_late_s_);
            double const up_begin = std::max(up, norm_s_);
            if (up_late_s_ > 0)
                add_span(forecast_row::up, up_begin, std::max(norm_s_ + cpu_late_s_, up_begin + up_late_s_));
        }
        double const device_begin = r_.device_speculates ? rates.backward_s : norm_s_;
        double const device_end = device_s_ > 0 ? device_begin + device_s_ : rates.backward_s;
        add_span(forecast_row::device, device_begin, device_end);
        double const cpu_layers = rates.overlaps_forward ? ratio_ * rates.forward_s : rates.forward_s;
        double const cpu_layers_begin = result.step_s - cpu_layers;
        if (rates.overlaps_forward)
            add_span(forecast_row::forward, device_end + rates.fixed_s,
                     std::min(device_end + rates.fixed_s + (1 - ratio_) * rates.forward_s, cpu_layers_begin));
        add_span(forecast_row::forward, cpu_layers_begin, result.step_s);
        return result;
    }

private:
    speculation_rates const& r_;
    double ratio_;
    double early_; // share of all elements that the CPU steps before the norm is known
    double late_ = 0;
    double down_ = 0;
    double first_pass_ = 0;
    std::vector<candidate> norm_; // the events that the norm waits for
    double norm_s_ = 0;
    double cpu_late_s_ = 0;
    double up_s_ = 0;
    double up_late_s_ = 0;
    double device_s_ = 0;
};

// The argument of the minimum of a convex function on [low, high]; the largest one if there are several.
template <class Function>
double last_minimum(double low, double high, Function const& f)
{
    constexpr int halvings = 80;
    double const end = high;
    double begin = low;
    for (int i = 0; i < halvings; ++i) {
        double const a = begin + (high - begin) / 3;
        double const b = high - (high - begin) / 3;
        (f(a) <= f(b) ? high : begin) = f(a) <= f(b) ? b : a;
    }
    double good = f(low) <= f(begin) ? low : begin;
    double const most = f(good) * (1 + 1e-12); // ignores differences by rounding
    if (f(end) <= most)
        return end;
    double bad = end;
    for (int i = 0; i < halvings; ++i) {
        double const middle = good + (bad - good) / 2;
        (f(middle) <= most ? good : bad) = middle;
    }
    return good;
}

double best_early(speculation_rates const& r, double ratio)
{
    // Exactly the ratio if all elements have room, so that no element waits.
    double const room = r.speculative_share >= 1 ? ratio : ratio * std::max(r.speculative_share, 0.0);
    return room > 0
               ? last_minimum(0, room, [&](double early) { return timed_split(r, ratio, early).longest().seconds; })
               : 0;
}

} // namespace

step_forecast forecast_step(speculation_rates const& r, double ratio)
{
    static_cast<void>(adamant::forecast(r.rates, ratio)); // throws for impossible rates
    return timed_split(r, ratio, best_early(r, ratio)).forecast();
}

step_forecast best_step(speculation_rates const& r, double least, double most)
{
    static_cast<void>(best_ratio(r.rates, least, most));
    double const ratio =
        last_minimum(least, most, [&](double x) { return timed_split(r, x, best_early(r, x)).longest().seconds; });
    return forecast_step(r, ratio);
}

} // namespace cli
