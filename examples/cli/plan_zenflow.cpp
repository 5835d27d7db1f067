// SPDX-License-Identifier: Apache-2.0
#include "plan_zenflow.hpp"

#include <algorithm>
#include <utility>

namespace cli {

namespace {

constexpr int most_windows = 200;

struct part_times {
    double device, down, up, first_sum, sum, host_step;
    explicit part_times(zenflow_rates const& r)
        : device((r.device_step_bytes * r.selected_elems + r.grad_bytes * (r.selected_elems + r.put_off_elems)) /
                 r.device_bytes_per_s),
          down(r.grad_bytes * r.put_off_elems / r.down_bytes_per_s),
          up(r.weight_bytes * r.put_off_elems / r.up_bytes_per_s),
          first_sum(r.first_sum_bytes * r.put_off_elems / r.host_bytes_per_s),
          sum(r.sum_bytes * r.put_off_elems / r.host_bytes_per_s),
          host_step(r.host_step_bytes * r.put_off_elems / r.host_bytes_per_s)
    {
    }
};

// One window after the other, by the model. All times are from the beginning of the window.
class windows {
public:
    explicit windows(zenflow_rates const& r) : r_(r), t_(r) {}

    double stall_s = 0;
    double window_s = 0;
    double left_over_s = 0; // what the host has still to add up at the end
    std::vector<zenflow_span> timeline;

    void next()
    {
        timeline.clear();
        stall_s = 0;
        span(zenflow_lane::sums, 0, left_over_s);
        host_ = left_over_s;
        put_off_ = r_.overlap ? t_.host_step : 0;
        double gpu = 0;
        double added = left_over_s;
        for (std::size_t i = 1; i <= r_.update_interval; ++i) {
            bool const last = i == r_.update_interval;
            bool const goes_up = last && r_.overlap && t_.up > 0;
            double const takes = std::max({r_.backward_s, t_.down, goes_up ? t_.up : 0});
            double const down = std::max(gpu + takes, added);
            stall_s += takes - r_.backward_s + (down - (gpu + takes));
            span(zenflow_lane::backward, gpu, down);
            span(zenflow_lane::down, gpu, t_.down > 0 ? down : gpu);
            step_until(down);
            host_ = std::max(host_, down);
            double landed = host_;
            if (last && put_off_ > 0) { // before the sums, and up as it is stepped
                landed += put_off_ * std::max(1.0, t_.up / t_.host_step);
                step_until(landed);
            }
            span(zenflow_lane::up, gpu, goes_up ? landed : gpu);
            gpu = down + t_.device;
            span(zenflow_lane::device, down, gpu);
            added = host_ + (i == 1 ? t_.first_sum : t_.sum);
            span(zenflow_lane::sums, host_, added);
            host_ = added;
            if (last && !r_.overlap) {
                put_off_ = t_.host_step;
                landed = added + std::max(t_.host_step, t_.up);
                span(zenflow_lane::up, added, t_.up > 0 ? landed : added);
                step_until(landed);
            }
            if (last) {
                stall_s += std::max(0.0, landed - gpu);
                gpu = std::max(gpu, landed);
            }
            span(zenflow_lane::forward, gpu, gpu + r_.forward_s);
            gpu += r_.forward_s;
        }
        window_s = gpu;
        left_over_s = std::max(0.0, host_ - window_s);
        for (zenflow_span& one : timeline)
            one.end_s = std::min(one.end_s, window_s);
    }

private:
    void span(zenflow_lane on, double begin, double end)
    {
        if (end > begin)
            timeline.push_back({on, begin, end});
    }
    // As much of the step of what was put off as there is time for.
    void step_until(double end)
    {
        double const takes = std::clamp(end - host_, 0.0, put_off_);
        span(zenflow_lane::host_step, host_, host_ + takes);
        host_ += takes;
        put_off_ -= takes;
    }

    zenflow_rates const& r_;
    part_times const t_;
    double host_ = 0;    // until when it is busy
    double put_off_ = 0; // what is left of that step
};

} // namespace

zenflow_forecast forecast_zenflow(zenflow_rates const& r)
{
    windows of(r);
    double before = -1;
    for (int i = 0; i < most_windows && of.left_over_s != before; ++i) { // then all are the same
        before = of.left_over_s;
        of.next();
    }
    part_times const t(r);
    auto const steps = static_cast<double>(r.update_interval);
    double const selections = r.selection_interval == 0 ? 0 : 1 / (steps * static_cast<double>(r.selection_interval));
    double const select_s = selections * r.moved_bytes / std::min(r.down_bytes_per_s, r.up_bytes_per_s);
    zenflow_forecast result;
    result.step_s = of.window_s / steps + select_s;
    result.stall_s = of.stall_s / steps + select_s;
    result.window_s = of.window_s;
    result.host_s = t.first_sum + (steps - 1) * t.sum + t.host_step;
    result.down_bytes = r.grad_bytes * r.put_off_elems + selections * r.moved_bytes;
    result.up_bytes = r.weight_bytes * r.put_off_elems / steps + selections * r.moved_bytes;
    result.timeline = std::move(of.timeline);
    return result;
}

} // namespace cli
