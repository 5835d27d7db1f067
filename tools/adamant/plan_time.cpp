// SPDX-License-Identifier: Apache-2.0
// Rates of a plan, from the command line, a measurement, or bandwidths of the machine.

#include "plan_time.hpp"

#include <algorithm>
#include <cmath>

#include "plan_measure.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

// The share of a GPU's memory bandwidth that a step reaches: it is bound by memory.
constexpr double gpu_share_of_bandwidth = 0.8;

std::string rate_text(double elems_per_s)
{
    bool const usual = elems_per_s >= 1e7 && elems_per_s < 1e12;
    return fixed(usual ? elems_per_s / 1e9 : elems_per_s, usual ? 2 : 0) + (usual ? "e9" : "") + " elements/s";
}

std::string gb_per_s(double bytes_per_s)
{
    return fixed(bytes_per_s / 1e9, 1) + " GB/s";
}

// Operations of one token in forward: two for each parameter in a matrix product, and those of attention scores and
// their product with the values, over half of the sequence on average.
double forward_flops(plan_request const& r)
{
    return 2 * static_cast<double>(r.network.computed_params) + 2 * static_cast<double>(r.network.layers) *
                                                                    static_cast<double>(r.network.query) *
                                                                    static_cast<double>(r.sequence);
}

class reader {
public:
    reader(plan_request const& r, given_rates const& options, plan_rates& result)
        : r_(r), options_(options), result_(result)
    {
    }

    void read_cpu()
    {
        double const elem = r_.step_bytes();
        std::string const bytes = shortest(elem) + " B an element";
        if (options_.cpu_elems_per_s) {
            result_.rates.cpu_elems_per_s = *options_.cpu_elems_per_s;
            add_line("CPU step", rate_text(*options_.cpu_elems_per_s), "--cpu-rate");
        } else if (options_.measure) {
            measured_rate const measured = measure_cpu(r_);
            result_.rates.cpu_elems_per_s = measured.bytes_per_s / elem;
            add_line("CPU step", rate_text(result_.rates.cpu_elems_per_s),
                     bytes + " at " + gb_per_s(measured.bytes_per_s) + ": " + measured.source);
        } else if (r_.machine.cpu_step_bytes_per_s.value > 0) {
            result_.rates.cpu_elems_per_s = r_.machine.cpu_step_bytes_per_s.value / elem;
            add_line("CPU step", rate_text(result_.rates.cpu_elems_per_s),
                     bytes + " at " + gb_per_s(r_.machine.cpu_step_bytes_per_s.value) + ": " +
                         r_.machine.cpu_step_bytes_per_s.source);
        } else {
            add_missing("--cpu-rate or --measure");
        }
        double const share = r_.speculative_share();
        if (share <= 0)
            add_line("records", "none", "--journal 0: every update waits for the norm");
        else
            add_line("records", "+" + fixed(100 * r_.record_cost(), 0) + "% of a CPU step",
                     "of what is stepped before the norm is known, " +
                         (share < 1
                              ? fixed(100 * share, 0) + "% at most: the journal has no room for more; the rest waits"
                              : std::string("as far as that makes the step no longer")));
    }

    void read_gpu()
    {
        double const elem = r_.step_bytes() + (r_.device_records ? r_.state_bytes() : 0);
        if (options_.gpu_elems_per_s) {
            result_.rates.device_elems_per_s = *options_.gpu_elems_per_s;
            add_line("GPU step", rate_text(*options_.gpu_elems_per_s), "--gpu-rate");
        } else if (r_.machine.gpu_bytes_per_s.value > 0) {
            result_.rates.device_elems_per_s = gpu_share_of_bandwidth * r_.machine.gpu_bytes_per_s.value / elem;
            add_line("GPU step", rate_text(result_.rates.device_elems_per_s),
                     shortest(elem) + " B an element at " + fixed(gpu_share_of_bandwidth * 100, 0) + "% (assumed) of " +
                         fixed(r_.machine.gpu_bytes_per_s.value / 1e12, 2) + " TB/s, " +
                         r_.machine.gpu_bytes_per_s.source);
        } else {
            add_missing("--gpu-rate");
        }
    }

    void read_link()
    {
        if (r_.machine.unified) {
            add_line("link", "none", "CPU and GPU use one memory");
            return;
        }
        read_direction("link down", r_.machine.down_bytes_per_s, result_.rates.down_bytes_per_s, "--link-down");
        read_direction("link up", r_.machine.up_bytes_per_s, result_.rates.up_bytes_per_s, "--link-up");
    }

    void read_compute()
    {
        double const flops = forward_flops(r_) * static_cast<double>(r_.batch) * static_cast<double>(r_.sequence);
        double const rate = options_.utilisation * r_.machine.flops.value;
        std::string const source = fixed(options_.utilisation * 100, 0) + "% (--utilisation) of " +
                                   fixed(r_.machine.flops.value / 1e12, 0) + " TFLOPS, " + r_.machine.flops.source;
        read_pass("backward", options_.backward_s, rate, 3 * flops,
                  "three times forward's, for it computes forward again, " + source, result_.rates.backward_s);
        read_pass("forward", options_.forward_s, rate, flops,
                  "2 x " + grouped(r_.network.computed_params) + " a token, and attention, " + source,
                  result_.rates.forward_s);
    }

private:
    void add_line(std::string const& name, std::string const& number, std::string const& source)
    {
        std::string text = name;
        text.resize(std::max<std::size_t>(text.size() + 1, 10), ' ');
        result_.lines.emplace_back(text + number, source);
    }
    void add_missing(std::string const& options) { result_.missing += (result_.missing.empty() ? "" : ", ") + options; }

    void read_direction(char const* name, figure const& link, double& rate, char const* option)
    {
        if (link.value > 0) {
            rate = link.value;
            add_line(name, gb_per_s(link.value), link.source);
        } else {
            add_missing(std::string(option) + " (or --link)");
        }
    }
    void read_pass(char const* name, std::optional<double> const& option_s, double rate, double flops,
                   std::string const& source, double& time_s)
    {
        if (option_s) {
            time_s = *option_s;
            add_line(name, seconds(time_s), std::string("--") + name);
        } else if (rate > 0) {
            time_s = flops / rate;
            add_line(name, seconds(time_s), source);
        } else {
            add_missing(std::string("--") + name + " (or --flops)");
        }
    }

    plan_request const& r_;
    given_rates const& options_;
    plan_rates& result_;
};

} // namespace

speculation_rates speculation_of(plan_request const& r, adamant::step_rates const& rates)
{
    speculation_rates result;
    result.rates = rates;
    result.speculative_share = r.speculative_share();
    result.record_cost = r.record_cost();
    result.measured_elems_per_s = rates.cpu_elems_per_s * r.step_bytes() / bytes_each(r.grad); // reads gradients alone
    result.device_speculates = r.device_records && r.speculative_share() > 0;
    return result;
}

plan_rates rates_of(plan_request const& request, given_rates const& options, std::size_t share_elems)
{
    plan_rates result;
    result.rates.elems = static_cast<double>(share_elems);
    result.rates.grad_bytes = static_cast<double>(size_bytes(request.grad));
    result.rates.weight_bytes = static_cast<double>(size_bytes(request.weight()));
    result.rates.overlaps_forward = options.overlap_forward;
    reader reader(request, options, result);
    reader.read_cpu();
    reader.read_gpu();
    reader.read_link();
    reader.read_compute();
    result.speculation = speculation_of(request, result.rates);
    return result;
}

} // namespace cli
