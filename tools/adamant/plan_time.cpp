// SPDX-License-Identifier: Apache-2.0
// Rates of a plan, from the command line, a measurement, or bandwidths of the machine.

#include "plan_time.hpp"

#include <algorithm>
#include <cmath>

#include "plan_measure.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

// Of the bandwidth of a GPU's memory, by a step that does nothing but move memory.
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

// Operations of one token on its way forward: two for each parameter that it meets in a product, and the scores of
// attention and what is made of them, over half of the sequence on average.
double forward_flops(plan_request const& r)
{
    return 2 * static_cast<double>(r.of.computed_params) +
           2 * static_cast<double>(r.of.layers) * static_cast<double>(r.of.query) * static_cast<double>(r.sequence);
}

class reader {
public:
    reader(plan_request const& r, given_rates const& given, plan_rates& to) : r_(r), given_(given), to_(to) {}

    void cpu()
    {
        double const elem = r_.step_bytes();
        std::string const bytes = shortest(elem) + " B an element";
        if (given_.cpu_elems_per_s) {
            to_.rates.cpu_elems_per_s = *given_.cpu_elems_per_s;
            line("CPU step", rate_text(*given_.cpu_elems_per_s), "--cpu-rate");
        } else if (given_.measure) {
            measured_rate const here = measure_cpu(r_);
            to_.rates.cpu_elems_per_s = here.bytes_per_s / elem;
            line("CPU step", rate_text(to_.rates.cpu_elems_per_s),
                 bytes + " at " + gb_per_s(here.bytes_per_s) + ": " + here.what);
        } else if (r_.on.cpu_step_bytes_per_s.value > 0) {
            to_.rates.cpu_elems_per_s = r_.on.cpu_step_bytes_per_s.value / elem;
            line("CPU step", rate_text(to_.rates.cpu_elems_per_s),
                 bytes + " at " + gb_per_s(r_.on.cpu_step_bytes_per_s.value) + ": " +
                     r_.on.cpu_step_bytes_per_s.source);
        } else {
            miss("--cpu-rate or --measure");
        }
        double const share = r_.speculative_share();
        if (share <= 0)
            line("records", "none", "--journal 0: every update waits for the norm");
        else
            line("records", "+" + fixed(100 * r_.record_cost(), 0) + "% of a CPU step",
                 "of what is stepped before the norm is known, " +
                     (share < 1 ? fixed(100 * share, 0) + "% at most: the journal has no room for more; the rest waits"
                                : std::string("as far as that makes the step no longer")));
    }

    void gpu()
    {
        double const elem = r_.step_bytes() + (r_.device_records ? r_.state_bytes() : 0);
        if (given_.gpu_elems_per_s) {
            to_.rates.device_elems_per_s = *given_.gpu_elems_per_s;
            line("GPU step", rate_text(*given_.gpu_elems_per_s), "--gpu-rate");
        } else if (r_.on.gpu_bytes_per_s.value > 0) {
            to_.rates.device_elems_per_s = gpu_share_of_bandwidth * r_.on.gpu_bytes_per_s.value / elem;
            line("GPU step", rate_text(to_.rates.device_elems_per_s),
                 shortest(elem) + " B an element at " + fixed(gpu_share_of_bandwidth * 100, 0) + "% (assumed) of " +
                     fixed(r_.on.gpu_bytes_per_s.value / 1e12, 2) + " TB/s, " + r_.on.gpu_bytes_per_s.source);
        } else {
            miss("--gpu-rate");
        }
    }

    void link()
    {
        if (r_.on.unified) {
            line("link", "none", "CPU and GPU use one memory");
            return;
        }
        one_way("link down", r_.on.down_bytes_per_s, to_.rates.down_bytes_per_s, "--link-down");
        one_way("link up", r_.on.up_bytes_per_s, to_.rates.up_bytes_per_s, "--link-up");
    }

    void compute()
    {
        double const flops = forward_flops(r_) * static_cast<double>(r_.batch) * static_cast<double>(r_.sequence);
        double const rate = given_.utilisation * r_.on.flops.value;
        std::string const how = fixed(given_.utilisation * 100, 0) + "% (--utilisation) of " +
                                fixed(r_.on.flops.value / 1e12, 0) + " TFLOPS, " + r_.on.flops.source;
        one_part("backward", given_.backward_s, rate, 3 * flops,
                 "three times forward's, for it computes forward again, " + how, to_.rates.backward_s);
        one_part("forward", given_.forward_s, rate, flops,
                 "2 x " + grouped(r_.of.computed_params) + " a token, and attention, " + how, to_.rates.forward_s);
    }

private:
    void line(std::string const& what, std::string const& number, std::string const& source)
    {
        std::string text = what;
        text.resize(std::max<std::size_t>(text.size() + 1, 10), ' ');
        to_.lines.emplace_back(text + number, source);
    }
    void miss(std::string const& options) { to_.missing += (to_.missing.empty() ? "" : ", ") + options; }

    void one_way(char const* what, figure const& from, double& to, char const* option)
    {
        if (from.value > 0) {
            to = from.value;
            line(what, gb_per_s(from.value), from.source);
        } else {
            miss(std::string(option) + " (or --link)");
        }
    }
    void one_part(char const* what, std::optional<double> const& given, double rate, double flops,
                  std::string const& source, double& to)
    {
        if (given) {
            to = *given;
            line(what, seconds(to), std::string("--") + what);
        } else if (rate > 0) {
            to = flops / rate;
            line(what, seconds(to), source);
        } else {
            miss(std::string("--") + what + " (or --flops)");
        }
    }

    plan_request const& r_;
    given_rates const& given_;
    plan_rates& to_;
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

plan_rates rates_of(plan_request const& request, given_rates const& given, std::size_t share_elems)
{
    plan_rates result;
    result.rates.elems = static_cast<double>(share_elems);
    result.rates.grad_bytes = static_cast<double>(size_bytes(request.grad));
    result.rates.weight_bytes = static_cast<double>(size_bytes(request.weight()));
    result.rates.overlaps_forward = given.overlap_forward;
    reader read(request, given, result);
    read.cpu();
    read.gpu();
    read.link();
    read.compute();
    result.speculation = speculation_of(request, result.rates);
    return result;
}

} // namespace cli
