// SPDX-License-Identifier: Apache-2.0
#include "plan_zenflow.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace cli {

namespace {

constexpr int most_windows = 200;

struct part_times {
    double device, publishing, down, up, first_sum, sum, host_step;
    explicit part_times(zenflow_rates const& r)
        : device((r.device_step_bytes * r.selected_elems + r.grad_bytes * r.all_elems) / r.device_bytes_per_s),
          publishing(r.publishing_bytes * r.deferred_elems / r.device_bytes_per_s),
          down(r.grad_bytes * r.all_elems / r.down_bytes_per_s),
          up(r.deferred_elems > 0 ? r.weight_bytes * r.matrix_elems / r.up_bytes_per_s : 0),
          first_sum(r.deferred_elems > 0 ? r.first_sum_bytes * r.matrix_elems / r.host_bytes_per_s : 0),
          sum(r.deferred_elems > 0 ? r.sum_bytes * r.matrix_elems / r.host_bytes_per_s : 0),
          host_step(r.host_step_bytes * r.deferred_elems / r.host_bytes_per_s)
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
        span(zenflow_row::sums, 0, left_over_s);
        host_ = left_over_s;
        deferred_ = r_.overlap ? t_.host_step : 0;
        begun_ = -1;
        double gpu = 0;
        double added = left_over_s;
        for (std::size_t i = 1; i <= r_.update_interval; ++i) {
            bool const last = i == r_.update_interval;
            double const comes = std::max(gpu, added); // gradients come down from then on
            double const down = std::max(gpu + r_.backward_s, comes + t_.down);
            stall_s += down - (gpu + r_.backward_s);
            span(zenflow_row::backward, gpu, down);
            span(zenflow_row::down, comes, t_.down > 0 ? down : comes);
            span(zenflow_row::device, down, down + t_.device);
            gpu = down + t_.device;
            step_until(gpu);
            double const sum = i == 1 ? t_.first_sum : t_.sum;
            if (last && r_.overlap && t_.host_step > 0) { // what is left of the step, before the sums
                step_until(std::numeric_limits<double>::infinity());
                flush(gpu, std::max(host_, begun_ + t_.up));
            }
            host_ = std::max(host_, gpu);
            added = host_ + sum;
            span(zenflow_row::sums, host_, added);
            host_ = added;
            if (last && !r_.overlap && t_.host_step > 0) {
                deferred_ = t_.host_step;
                begun_ = -1;
                step_until(std::numeric_limits<double>::infinity());
                flush(gpu, std::max(host_, begun_ + t_.up));
            }
            span(zenflow_row::forward, gpu, gpu + r_.forward_s);
            gpu += r_.forward_s;
        }
        window_s = gpu;
        left_over_s = std::max(0.0, host_ - window_s);
        for (zenflow_span& one : timeline)
            one.end_s = std::min(one.end_s, window_s);
    }

private:
    void span(zenflow_row on, double begin, double end)
    {
        if (end > begin)
            timeline.push_back({on, begin, end});
    }
    // As much of the step of the deferred gradients as there is time for.
    void step_until(double end)
    {
        double const takes = std::clamp(end - host_, 0.0, deferred_);
        if (takes > 0 && begun_ < 0)
            begun_ = host_;
        span(zenflow_row::host_step, host_, host_ + takes);
        host_ += takes;
        deferred_ -= takes;
    }
    // Weights that are all up by then come into use.
    void flush(double& gpu, double up)
    {
        span(zenflow_row::up, begun_, t_.up > 0 ? up : begun_);
        double const published = std::max(gpu, up) + t_.publishing;
        stall_s += published - gpu;
        gpu = published;
    }

    zenflow_rates const& r_;
    part_times const t_;
    double host_ = 0;     // until when it is busy
    double deferred_ = 0; // what is left of that step
    double begun_ = -1;   // when it was begun; below 0: it was not
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
    double const select_s = selections * (r.moved_bytes / r.down_bytes_per_s + r.moved_bytes / r.up_bytes_per_s);
    zenflow_forecast result;
    result.step_s = of.window_s / steps + select_s;
    result.stall_s = of.stall_s / steps + select_s;
    result.window_s = of.window_s;
    result.host_s = t.first_sum + (steps - 1) * t.sum + t.host_step;
    double const up_elems = r.deferred_elems > 0 ? r.matrix_elems : 0;
    result.down_bytes = r.grad_bytes * r.all_elems + selections * r.moved_bytes;
    result.up_bytes = r.weight_bytes * up_elems / steps + selections * r.moved_bytes;
    result.timeline = std::move(of.timeline);
    return result;
}

} // namespace cli
