// SPDX-License-Identifier: Apache-2.0
// Makes a plan from a request: the ratio, the split, the memory, and advice if it does not fit.

#include "plan_result.hpp"

#include <algorithm>

#include <adamant/error.hpp>
#include <adamant/split.hpp>

#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t most_gpus = 65536;

bool some_ratio_fits(plan_request const& r)
{
    return !fitting(r, sum(shares(r.network, r.gpus)), headroom).empty;
}

// The smallest number of GPUs, above the plan's, for which some ratio fits with headroom; 0: there is none. The memory
// of each GPU shrinks with their number.
std::size_t gpus_that_fit(plan_request r)
{
    std::size_t low = r.gpus;
    std::size_t high = low;
    do {
        if (high == most_gpus)
            return 0;
        low = high;
        high = std::min(2 * high, most_gpus);
        r.gpus = high;
    } while (!some_ratio_fits(r));
    while (high - low > 1) {
        r.gpus = low + (high - low) / 2;
        (some_ratio_fits(r) ? high : low) = r.gpus;
    }
    return high;
}

// The largest value up to `most` that helps; 0: none does. If a value helps, smaller ones do.
template <class Helps>
std::size_t largest_that_helps(std::size_t most, Helps const& helps)
{
    std::size_t good = 0;
    std::size_t bad = most + 1;
    while (bad - good > 1) {
        std::size_t const middle = good + (bad - good) / 2;
        (helps(middle) ? good : bad) = middle;
    }
    return good;
}

// Advice to store the state in fewer bytes: smaller changes first, larger ones only if those are not enough. If nothing
// fits, also without the journal, which is large if records are copies of the state.
template <class Helps>
void add_storage(plan_request const& r, Helps const& helps, std::vector<std::string>& advice)
{
    bool const has_halves = r.param == dtype::float32 && r.weight_out == dtype::bfloat16;
    bool halves_help = false;
    auto const add = [&](bool halves, dtype moments, bool journal) {
        bool const helped = helps([&](plan_request& o) {
            o.param = halves ? dtype::split_float32 : o.param;
            if (moments != dtype::float32)
                o.exp_avg = o.exp_avg_sq = moments;
            if (!journal)
                o.journal = 0;
        });
        if (!helped)
            return false;
        std::string const type(name(moments));
        std::string const bits = std::string("moments in ") + (moments == dtype::bfloat16 ? "16" : "8") + " bits";
        advice.push_back((moments == dtype::float32
                              ? "split master weights, which have the same bits (--state split_float32)"
                          : halves ? "split master weights and " + bits + " (--state split_float32+" + type + ")"
                                   : bits + " (--exp-avg " + type + " --exp-avg-sq " + type + ")") +
                         (journal ? "" : " with --journal 0"));
        return true;
    };
    auto const saves = [&](dtype moments) {
        return bytes_each(r.exp_avg) + bytes_each(r.exp_avg_sq) > 2 * bytes_each(moments);
    };
    bool const without = r.journal_bytes() > 0 && !helps([](plan_request& o) { o.journal = 0; });
    for (bool const journal : {true, false}) {
        if (!journal && (!without || halves_help))
            return;
        halves_help = has_halves && add(true, dtype::float32, journal);
        for (dtype const type : {dtype::bfloat16, dtype::quantized8})
            if (saves(type) && (add(false, type, journal) || (has_halves && !halves_help && add(true, type, journal))))
                return;
    }
}

// Single changes of the request after which the plan fits and leaves headroom.
std::vector<std::string> make_advice(plan_result const& plan)
{
    plan_request const& r = plan.request;
    std::vector<std::string> advice;
    if (!plan.range.empty) {
        std::string const least = plan.roomy.least_text();
        std::string const most = plan.roomy.most_text();
        advice.push_back((least == most ? "--ratio " + least : "a --ratio from " + least + " to " + most) +
                         (plan.roomy_exists ? ", which leaves " + headroom_text() + " free" : ""));
    }
    auto const helps = [&](auto const& change) {
        plan_request other = r;
        change(other);
        fitting_range const range = fitting(other, plan.share_elems, headroom);
        if (range.empty || !r.ratio)
            return !range.empty;
        auto const cpu = static_cast<std::size_t>(*r.ratio * static_cast<double>(plan.share_elems));
        return cpu >= range.least && cpu <= range.most;
    };
    if (r.device_records && helps([](plan_request& o) { o.device_records = false; }))
        advice.push_back("leaving --device-records out");
    if (!r.give_back && helps([](plan_request& o) { o.give_back = true; }))
        advice.push_back("giving back the arrays of what the GPU has (--give-back)");
    if (r.journal_bytes() > 0 && helps([](plan_request& o) { o.journal = 0; }))
        advice.push_back("--journal 0: steps then wait for the norm");
    add_storage(r, helps, advice);
    std::size_t const batch =
        largest_that_helps(r.batch - 1, [&](std::size_t n) { return helps([&](plan_request& o) { o.batch = n; }); });
    if (batch != 0)
        advice.push_back("--batch " + std::to_string(batch));
    constexpr std::size_t some_tokens = 1024; // a length that people choose is a multiple of this
    std::size_t const sequence = some_tokens * largest_that_helps((r.sequence - 1) / some_tokens, [&](std::size_t n) {
                                     return helps([&](plan_request& o) { o.sequence = n * some_tokens; });
                                 });
    if (sequence != 0)
        advice.push_back("shorter sequences (--seq " + std::to_string(sequence) + " or less)");
    if (plan.range.empty)
        if (std::size_t const gpus = gpus_that_fit(r); gpus != 0)
            advice.push_back(plural(gpus, "GPU") + " of this kind");
    return advice;
}

} // namespace

std::string headroom_text()
{
    return fixed(100 * headroom, 0) + "% of each memory";
}

plan_result make_plan(plan_request const& request, given_rates const& rates)
{
    plan_result result;
    result.request = request;
    std::vector<std::size_t> const sizes = shares(request.network, request.gpus);
    result.share_elems = sum(sizes);
    double const all = static_cast<double>(result.share_elems);
    result.range = fitting(request, result.share_elems);
    result.roomy = fitting(request, result.share_elems, headroom);
    result.roomy_exists = !result.roomy.empty;
    if (!result.roomy_exists)
        result.roomy = result.range;
    result.rates = rates_of(request, rates, result.share_elems);
    double least = 0;
    double most = 1;
    if (!result.range.empty) {
        least = static_cast<double>(result.roomy.least) / all;
        most = static_cast<double>(result.roomy.most) / all;
    }
    if (result.rates.missing.empty())
        result.best = best_step(result.rates.speculation, least, most);

    split_request options;
    if (request.ratio) {
        options.ratio = *request.ratio;
        result.ratio_source = "as --ratio says";
    } else if (result.range.empty) {
        options.ratio = 1; // needs least of the GPU
        result.ratio_source = "no ratio fits; this one leaves the GPU most";
    } else {
        options.ratio = result.best ? result.best->ratio : most;
        options.most_on_cpu = result.roomy.most;
        options.most_on_device = result.share_elems - result.roomy.least;
        result.ratio_source = std::string(result.best ? "the best" : "the largest") + " of those that " +
                              (result.roomy_exists ? "leave " + headroom_text() + " free" : "fit");
    }
    try {
        result.split = split(sizes, options);
    } catch (unavailable const&) { // no shard boundary lies between both limits
        options.most_on_cpu.reset();
        options.most_on_device.reset();
        result.split = split(sizes, options);
    }
    result.memory = memory_of(request, result.split.cpu_elems, result.split.device_elems);
    result.fits = fits(result.memory, request.machine);
    if (result.rates.missing.empty())
        result.forecast = forecast_step(result.rates.speculation, result.split.ratio());
    if (request.zenflow)
        result.zenflow = plan_zenflow(request, result.rates, result.split, result.memory, result.forecast);
    if (!result.fits)
        result.advice = make_advice(result);
    return result;
}

} // namespace cli
