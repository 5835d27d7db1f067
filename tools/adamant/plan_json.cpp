// SPDX-License-Identifier: Apache-2.0
// A plan as JSON: bytes and elements are whole numbers, times and rates are numbers, unknown values are null.

#include "plan_result.hpp"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace cli {

namespace {

using namespace adamant;

// Sources and names are ASCII. In names from a file, other bytes become question marks.
std::string quoted(std::string_view text)
{
    std::string json = "\"";
    for (char const c : text) {
        bool const plain = c >= ' ' && c <= '~';
        json += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, plain ? c : '?');
    }
    return json + '"';
}
std::string number(double value)
{
    if (!std::isfinite(value))
        return "null";
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
std::string number(std::size_t value)
{
    return std::to_string(value);
}
std::string boolean(bool value)
{
    return value ? "true" : "false";
}

using member = std::pair<char const*, std::string>; // the value as JSON
std::string object(std::initializer_list<member> members)
{
    std::string json = "{";
    for (member const& item : members)
        json += (json.size() == 1 ? "" : ", ") + quoted(item.first) + ": " + item.second;
    return json + "}";
}
template <class List, class ToJson>
std::string array(List const& list, ToJson to_json)
{
    std::string json = "[";
    for (auto const& item : list)
        json += (json.size() == 1 ? "" : ", ") + to_json(item);
    return json + "]";
}

std::string to_object(figure const& f)
{
    return object({{"value", f.value > 0 ? number(f.value) : "null"}, {"source", quoted(f.source)}});
}

std::string to_object(std::vector<memory_item> const& items, figure const& limit)
{
    std::size_t const total = memory_plan::total(items);
    std::string json = "{\"items\": {";
    for (memory_item const& item : items)
        json += (&item == &items.front() ? "" : ", ") + quoted(item.key) + ": " + number(item.bytes);
    return json + "}, \"total_bytes\": " + number(total) +
           ", \"available_bytes\": " + number(static_cast<std::size_t>(limit.value)) +
           ", \"fits\": " + boolean(static_cast<double>(total) <= limit.value) + "}";
}

std::string number(std::optional<double> const& value)
{
    return value ? number(*value) : "null";
}

char const* name(zenflow_row row)
{
    constexpr char const* names[] = {"backward", "down", "sums", "host_step", "up", "device", "forward"};
    return names[static_cast<std::size_t>(row)];
}

template <class Timeline>
std::string timeline_json(Timeline const& timeline)
{
    return array(timeline, [](auto const& span) {
        return object(
            {{"row", quoted(name(span.row))}, {"begin_s", number(span.begin_s)}, {"end_s", number(span.end_s)}});
    });
}

std::string to_object(std::optional<step_forecast> const& f)
{
    if (!f)
        return "null";
    return object({{"ratio", number(f->ratio)},
                   {"step_s", number(f->step_s)},
                   {"update_s", number(f->update_s)},
                   {"bound_by", quoted(name(f->bound_by))},
                   {"timeline", timeline_json(f->timeline)}});
}

std::string to_object(zenflow_plan const& plan, plan_request const& r)
{
    zenflow_request const& zenflow = *r.zenflow;
    auto const ways = [&](offload_way const& way) {
        return quoted(way.key) + ": " +
               object({{"step_s", number(way.step_s)},
                       {"stall_s", number(way.stall_s)},
                       {"down_bytes", number(static_cast<std::size_t>(std::llround(way.down_bytes)))},
                       {"up_bytes", number(static_cast<std::size_t>(std::llround(way.up_bytes)))},
                       {"gpu", to_object(way.memory.gpu, r.machine.gpu_bytes)},
                       {"host", r.machine.unified ? "null" : to_object(way.memory.host, r.machine.host_bytes)},
                       {"fits", boolean(way.fits)}});
    };
    std::string const all = array(plan.ways, ways);
    auto const window = [&](double zenflow_forecast::*value) {
        return plan.forecast ? number((*plan.forecast).*value) : "null";
    };
    return object({{"topk_ratio", number(zenflow.topk_ratio)},
                   {"update_interval", number(zenflow.update_interval)},
                   {"select_interval", zenflow.select_interval == 0 ? "null" : number(zenflow.select_interval)},
                   {"selections_counted", boolean(zenflow.select_interval != 0)},
                   {"overlap", boolean(zenflow.overlap)},
                   {"selected_elems", number(plan.selected_elems)},
                   {"deferred_elems", number(plan.deferred_elems)},
                   {"window_s", window(&zenflow_forecast::window_s)},
                   {"host_s", window(&zenflow_forecast::host_s)},
                   {"ways", "{" + all.substr(1, all.size() - 2) + "}"},
                   {"timeline", plan.forecast ? timeline_json(plan.forecast->timeline) : "null"}});
}

} // namespace

std::string plan_json(plan_result const& plan)
{
    plan_request const& r = plan.request;
    double const all = static_cast<double>(plan.share_elems);
    auto const type = [](dtype value) { return quoted(name(value)); };
    auto const ratios = [&](fitting_range const& range) {
        return object({{"least", number(static_cast<double>(range.least) / all)},
                       {"most", number(static_cast<double>(range.most) / all)}});
    };
    step_rates const& rates = plan.rates.rates;
    return object({{"fits", boolean(plan.fits)},
                   {"model", object({{"name", quoted(r.network.name)},
                                     {"source", quoted(r.network.source)},
                                     {"params", number(r.network.params)},
                                     {"tensors", number(r.network.tensors.size())},
                                     {"layers", number(r.network.layers)},
                                     {"hidden", number(r.network.hidden)},
                                     {"vocab", number(r.network.vocab)}})},
                   {"gpus", number(r.gpus)},
                   {"machine", object({{"name", quoted(r.machine.name)},
                                       {"unified_memory", boolean(r.machine.unified)},
                                       {"gpu_bytes", to_object(r.machine.gpu_bytes)},
                                       {"host_bytes", to_object(r.machine.host_bytes)},
                                       {"gpu_bytes_per_s", to_object(r.machine.gpu_bytes_per_s)},
                                       {"cpu_step_bytes_per_s", to_object(r.machine.cpu_step_bytes_per_s)},
                                       {"down_bytes_per_s", to_object(r.machine.down_bytes_per_s)},
                                       {"up_bytes_per_s", to_object(r.machine.up_bytes_per_s)},
                                       {"flops", to_object(r.machine.flops)}})},
                   {"types", object({{"param", type(r.param)},
                                     {"grad", type(r.grad)},
                                     {"exp_avg", type(r.exp_avg)},
                                     {"exp_avg_sq", type(r.exp_avg_sq)},
                                     {"weight_out", type(r.weight_out)}})},
                   {"batch", number(r.batch)},
                   {"sequence", number(r.sequence)},
                   {"ratio", number(plan.split.ratio())},
                   {"ratio_asked", r.ratio ? number(*r.ratio) : "null"},
                   {"ratios_that_fit", plan.range.empty ? "null" : ratios(plan.range)},
                   {"headroom", number(headroom)},
                   {"ratios_with_headroom", plan.roomy_exists ? ratios(plan.roomy) : "null"},
                   {"elems", object({{"share", number(plan.share_elems)},
                                     {"cpu", number(plan.split.cpu_elems)},
                                     {"device", number(plan.split.device_elems)}})},
                   {"gpu", to_object(plan.memory.gpu, r.machine.gpu_bytes)},
                   {"host", r.machine.unified ? "null" : to_object(plan.memory.host, r.machine.host_bytes)},
                   {"pinned_bytes", number(plan.memory.pinned())},
                   {"saved_by_sharing_bytes", number(plan.memory.saved_by_sharing)},
                   {"helps", array(plan.advice, [](std::string const& item) { return quoted(item); })},
                   {"step", to_object(plan.forecast)},
                   {"best", plan.range.empty ? "null" : to_object(plan.best)},
                   {"zenflow", plan.zenflow ? to_object(*plan.zenflow, r) : "null"},
                   {"missing", quoted(plan.rates.missing)},
                   {"speculation", object({{"journal_bytes_each", number(r.journal_bytes())},
                                           {"room_for_share", number(r.speculative_share())},
                                           {"record_cost", number(r.record_cost())},
                                           {"waits_for_norm", boolean(r.speculative_share() <= 0)}})},
                   {"rates", object({{"cpu_elems_per_s", number(rates.cpu_elems_per_s)},
                                     {"device_elems_per_s", number(rates.device_elems_per_s)},
                                     {"down_bytes_per_s", number(rates.down_bytes_per_s)},
                                     {"up_bytes_per_s", number(rates.up_bytes_per_s)},
                                     {"backward_s", number(rates.backward_s)},
                                     {"forward_s", number(rates.forward_s)},
                                     {"sources", array(plan.rates.lines,
                                                       [](auto const& item) {
                                                           return quoted(item.first + ": " + item.second);
                                                       })}})}}) +
           "\n";
}

} // namespace cli
