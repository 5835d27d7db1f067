// SPDX-License-Identifier: Apache-2.0
// Definitions of plan_zenflow.hpp.
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

// Simulates windows by the model, one after the other. All times are from the beginning of the window.
class windows {
public:
    explicit windows(zenflow_rates const& r) : r_(r), t_(r) {}

    double stall_s = 0;
    double window_s = 0;
    double backlog_s = 0; // accumulation that the host has left at the end
    std::vector<zenflow_span> timeline;

    void next()
    {
        timeline.clear();
        stall_s = 0;
        add_span(zenflow_row::sums, 0, backlog_s);
        host_ = backlog_s;
        deferred_ = r_.overlap ? t_.host_step : 0;
        step_begin_ = -1;
        double gpu = 0;
        double sums_end = backlog_s;
        for (std::size_t i = 1; i <= r_.update_interval; ++i) {
            bool const is_last = i == r_.update_interval;
            double const down_begin = std::max(gpu, sums_end); // downloads of gradients begin then
            double const down = std::max(gpu + r_.backward_s, down_begin + t_.down);
            stall_s += down - (gpu + r_.backward_s);
            add_span(zenflow_row::backward, gpu, down);
            add_span(zenflow_row::down, down_begin, t_.down > 0 ? down : down_begin);
            add_span(zenflow_row::device, down, down + t_.device);
            gpu = down + t_.device;
            step_until(gpu);
            double const sum = i == 1 ? t_.first_sum : t_.sum;
            if (is_last && r_.overlap && t_.host_step > 0) { // the rest of the step precedes the sums
                step_until(std::numeric_limits<double>::infinity());
                flush(gpu, std::max(host_, step_begin_ + t_.up));
            }
            host_ = std::max(host_, gpu);
            sums_end = host_ + sum;
            add_span(zenflow_row::sums, host_, sums_end);
            host_ = sums_end;
            if (is_last && !r_.overlap && t_.host_step > 0) {
                deferred_ = t_.host_step;
                step_begin_ = -1;
                step_until(std::numeric_limits<double>::infinity());
                flush(gpu, std::max(host_, step_begin_ + t_.up));
            }
            add_span(zenflow_row::forward, gpu, gpu + r_.forward_s);
            gpu += r_.forward_s;
        }
        window_s = gpu;
        backlog_s = std::max(0.0, host_ - window_s);
        for (zenflow_span& span : timeline)
            span.end_s = std::min(span.end_s, window_s);
    }

private:
    void add_span(zenflow_row row, double begin, double end)
    {
        if (end > begin)
            timeline.push_back({row, begin, end});
    }
    // Runs the step of the deferred gradients until `end` or until it is complete.
    void step_until(double end)
    {
        double const duration = std::clamp(end - host_, 0.0, deferred_);
        if (duration > 0 && step_begin_ < 0)
            step_begin_ = host_;
        add_span(zenflow_row::host_step, host_, host_ + duration);
        host_ += duration;
        deferred_ -= duration;
    }
    // Publishes weights that are all up at `up`.
    void flush(double& gpu, double up)
    {
        add_span(zenflow_row::up, step_begin_, t_.up > 0 ? up : step_begin_);
        double const published = std::max(gpu, up) + t_.publishing;
        stall_s += published - gpu;
        gpu = published;
    }

    zenflow_rates const& r_;
    part_times const t_;
    double host_ = 0;        // end of the host's work
    double deferred_ = 0;    // remaining time of the deferred step
    double step_begin_ = -1; // of the deferred step; below 0: it has not begun
};

} // namespace

zenflow_forecast forecast_zenflow(zenflow_rates const& r)
{
    windows simulation(r);
    double backlog_s = -1;
    for (int i = 0; i < most_windows && simulation.backlog_s != backlog_s; ++i) { // until all windows are the same
        backlog_s = simulation.backlog_s;
        simulation.next();
    }
    part_times const t(r);
    auto const steps = static_cast<double>(r.update_interval);
    double const selections = r.selection_interval == 0 ? 0 : 1 / (steps * static_cast<double>(r.selection_interval));
    double const select_s = selections * (r.moved_bytes / r.down_bytes_per_s + r.moved_bytes / r.up_bytes_per_s);
    zenflow_forecast result;
    result.step_s = simulation.window_s / steps + select_s;
    result.stall_s = simulation.stall_s / steps + select_s;
    result.window_s = simulation.window_s;
    result.host_s = t.first_sum + (steps - 1) * t.sum + t.host_step;
    double const up_elems = r.deferred_elems > 0 ? r.matrix_elems : 0;
    result.down_bytes = r.grad_bytes * r.all_elems + selections * r.moved_bytes;
    result.up_bytes = r.weight_bytes * up_elems / steps + selections * r.moved_bytes;
    result.timeline = std::move(simulation.timeline);
    return result;
}

} // namespace cli
