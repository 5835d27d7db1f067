// SPDX-License-Identifier: Apache-2.0
// A plan as text: the answer first, then the memory, then times and the sources of their rates.

#include "plan_result.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t bar_columns = 84;

std::string padded(std::string text, std::size_t columns)
{
    text.resize(std::max(columns, text.size()), ' ');
    return text;
}

char const* in_words(forecast_row row)
{
    constexpr char const* words[] = {"backward",    "the link down",  "the CPU's step",
                                     "the link up", "the GPU's step", "forward"};
    return words[static_cast<std::size_t>(row)];
}

class printer {
public:
    explicit printer(plan_result const& plan) : plan_(plan), r_(plan.request) {}

    std::string print()
    {
        print_job();
        print_answer();
        print_memory(r_.machine.unified ? "memory, of CPU and GPU in one, for each GPU" : "memory of each GPU",
                     plan_.memory.gpu, r_.machine.gpu_bytes);
        if (!r_.machine.unified)
            print_memory("memory of the host, for each GPU", plan_.memory.host, r_.machine.host_bytes);
        print_times();
        if (plan_.zenflow)
            print_zenflow(*plan_.zenflow);
        return out_;
    }

private:
    void say(std::string const& label, std::string const& text) { out_ += wrapped(padded(label, 10), text); }

    // The names of the first and the last tensor on the device.
    std::string device_tensors() const
    {
        shard_piece const* first = nullptr;
        shard_piece const* last = nullptr;
        for (shard_piece const& piece : plan_.split.pieces)
            if (piece.backend == backend_kind::device) {
                first = first == nullptr ? &piece : first;
                last = &piece;
            }
        if (first == nullptr)
            return "";
        auto const name = [&](shard_piece const& piece) { return printable(r_.network.tensors[piece.shard].name); };
        return first->shard == last->shard ? name(*first) : name(*first) + " to " + name(*last);
    }

    void print_job()
    {
        model const& m = r_.network;
        say("model", m.name + ": " + grouped(m.params) + " parameters in " + plural(m.tensors.size(), "tensor") + "; " +
                         m.source);
        std::string const gpus = r_.machine.name.empty() ? plural(r_.gpus, "GPU") + " as described"
                                                         : std::to_string(r_.gpus) + " x " + r_.machine.name;
        say("machine",
            gpus + "; GPU memory " + gb(bytes_of(r_.machine.gpu_bytes)) + " GB each: " + r_.machine.gpu_bytes.source);
        if (!r_.machine.unified)
            say("",
                "host memory " + gb(bytes_of(r_.machine.host_bytes)) + " GB for each: " + r_.machine.host_bytes.source);
        say("types", "params " + type(r_.param) + ", moments " + type(r_.exp_avg) +
                         (r_.exp_avg_sq == r_.exp_avg ? "" : " and " + type(r_.exp_avg_sq)) + ", gradients " +
                         type(r_.grad) + ", weights " + type(r_.weight()));
        say("batch", plural(r_.batch, "sequence") + " of " + std::to_string(r_.sequence) + " tokens on each GPU");
        say("share",
            grouped(plan_.share_elems) + " parameters for each GPU" +
                (r_.gpus == 1 ? "" : ": weights, gradients and optimizer are divided among them, as by ZeRO-3"));
        std::string text = ratio() + ", " + plan_.ratio_source + ": the CPU steps " + grouped(plan_.split.cpu_elems);
        if (plan_.split.device_elems != 0)
            text += ", the GPU " + grouped(plan_.split.device_elems) + ", of " + device_tensors();
        say("ratio", text);
    }

    static std::string type(dtype value) { return std::string(name(value)); }
    static std::size_t bytes_of(figure const& size) { return static_cast<std::size_t>(size.value); }
    std::string ratio() const
    {
        double const ratio_value = plan_.split.ratio();
        fitting_range const& range = r_.ratio ? plan_.range : plan_.roomy;
        return plan_.fits && !plan_.range.empty ? range.text_within(ratio_value) : nearest_ratio(ratio_value);
    }

    void print_answer()
    {
        out_ += "\n";
        std::string const least = plan_.range.least_text();
        std::string const most = plan_.range.most_text();
        std::string ratios = "no ratio fits: ";
        if (!plan_.range.empty) {
            ratios = least == most ? "only ratio " + least + " fits" : "ratios from " + least + " to " + most + " fit";
            if (plan_.range.least != 0)
                ratios += "; with smaller ones the GPU's memory is full";
            if (plan_.range.most != plan_.share_elems)
                ratios +=
                    std::string("; with larger ones the ") + (r_.machine.unified ? "" : "host's ") + "memory is full";
        } else if (plan_.range.gpu_short || plan_.range.host_short) {
            ratios +=
                std::string(plan_.range.gpu_short ? (r_.machine.unified ? "the memory" : "the GPU's memory") : "") +
                (plan_.range.gpu_short && plan_.range.host_short ? " and " : "") +
                (plan_.range.host_short ? "the host's memory" : "") +
                (plan_.range.gpu_short && plan_.range.host_short ? " are" : " is") + " too small for all of them";
        } else {
            ratios += "the GPU's memory needs " + least + " or more, the host's " + most + " or less";
        }
        if (plan_.fits && (plan_.split.cpu_elems < plan_.roomy.least || plan_.split.cpu_elems > plan_.roomy.most ||
                           !plan_.roomy_exists))
            ratios += "; this one leaves less than " + headroom_text() + " free";
        say("fits", std::string(plan_.fits ? "yes; " : "NO; ") + ratios);
        if (!plan_.fits) {
            std::string text;
            for (std::string const& item : plan_.advice)
                text += (text.empty() ? "" : "; or ") + item;
            say("helps", text.empty()
                             ? "none of the changes that were tried alone: GPUs, batch, sequence, journal, types"
                             : text);
        }
        if (plan_.forecast) {
            double const s = plan_.forecast->step_s;
            std::string text = seconds(s) + " with this ratio";
            if (double const tokens = static_cast<double>(r_.tokens()) * static_cast<double>(r_.gpus); s > 0)
                text += ", " + grouped(static_cast<std::size_t>(std::min(tokens / s, 1e18))) + " tokens/s on all GPUs";
            text += std::string("; ") + in_words(plan_.forecast->bound_by) + " sets the pace";
            if (r_.speculative_share() <= 0)
                text += "; every update waits for the norm (--journal 0)";
            say("step", text);
            if (!plan_.range.empty)
                say("best", "ratio " + plan_.roomy.text_within(plan_.best->ratio) + " with " +
                                seconds(plan_.best->step_s) +
                                (plan_.roomy_exists ? ", of those that leave " + headroom_text() + " free"
                                                    : "; no ratio leaves " + headroom_text() + " free"));
        } else {
            say("step", "no time without " + plan_.rates.missing);
        }
    }

    // A bar of the memory, with each item's letter in columns in proportion to its bytes.
    std::string bar(std::vector<memory_item> const& items, std::size_t limit) const
    {
        std::size_t const total = memory_plan::total(items);
        double const scale = static_cast<double>(bar_columns) / static_cast<double>(std::max(total, limit));
        auto const column = [&](std::size_t bytes) {
            return static_cast<std::size_t>(std::lround(scale * static_cast<double>(bytes)));
        };
        std::string text;
        std::size_t end = 0;
        for (memory_item const& item : items) {
            end += item.bytes;
            text.resize(std::max(text.size(), column(end)), item.letter);
        }
        text.resize(std::max(text.size(), column(limit)), '.');
        text.insert(std::min(text.size(), column(limit)), 1, '|');
        return "  |" + text + (total > limit ? " too much\n" : "\n");
    }

    void print_memory(std::string const& title, std::vector<memory_item> const& items, figure const& limit)
    {
        constexpr std::size_t name_columns = 26;
        out_ += "\n" + title + "\n";
        out_ += bar(items, bytes_of(limit));
        std::size_t const total = memory_plan::total(items);
        std::size_t const digits = std::max<std::size_t>(gb(std::max(total, bytes_of(limit))).size(), 6);
        auto const row = [&](char letter, std::string const& name, std::size_t bytes, std::string const& meaning) {
            std::string const number = gb(bytes);
            out_ += wrapped(std::string("  ") + letter + " " + padded(name, name_columns) +
                                std::string(digits - std::min(digits, number.size()), ' ') + number + " GB  ",
                            meaning);
        };
        for (memory_item const& item : items)
            if (!item.meaning.empty())
                row(item.letter, item.name, item.bytes, item.meaning);
        std::size_t const have = bytes_of(limit);
        row(' ', "together", total,
            "of " + gb(have) + " GB: " +
                (total <= have ? "fits, " + gb(have - total) + " GB to spare" : gb(total - have) + " GB TOO MUCH"));
        if (r_.machine.unified)
            row(' ', "saved by sharing", plan_.memory.saved_by_sharing,
                "which GPUs with memory of their own need besides: staging copies of gradients and weights, and the "
                "arrays "
                "of the GPU's part a second time");
        if (&items == &plan_.memory.host) {
            row(' ', "of these pinned", plan_.memory.pinned(), "which the system cannot move or swap");
            for (memory_item const& item : items)
                if (item.key == "device_arrays" && item.bytes != 0)
                    row(' ', "without B", total - item.bytes, "with their pages given back");
        }
    }

    void print_times()
    {
        if (plan_.forecast)
            out_ += "\na step with ratio " + ratio() + "\n" + draw_timeline(*plan_.forecast);
        if (plan_.rates.lines.empty())
            return;
        out_ += "\nrates, and where they are from\n";
        for (auto const& [number, source] : plan_.rates.lines)
            out_ += wrapped("  " + padded(number + "  ", 31), source);
        if (plan_.forecast)
            out_ += wrapped("  ", std::string(r_.speculative_share() <= 0
                                                  ? "CPU and GPU step when the norm of all gradients is known. "
                                              : r_.device_records
                                                  ? "The CPU steps gradients as backward makes them, and the GPU its "
                                                    "part after backward. "
                                                  : "The CPU steps gradients as backward makes them, and the GPU its "
                                                    "part when the norm is known. ") +
                                      "Weights that GPUs gather from each other are taken to hide behind computing.");
    }

    void print_zenflow(zenflow_plan const& zenflow)
    {
        zenflow_request const& options = *r_.zenflow;
        std::string const steps = plural(options.update_interval, "step");
        out_ += "\n" + wrapped("", "ZenFlow: " + grouped(zenflow.selected_elems) + " parameters selected, " +
                                       shortest(options.topk_ratio) + " of the columns and all vectors; " +
                                       grouped(zenflow.deferred_elems) + " deferred for " + steps +
                                       (options.overlap ? ", and stepped during the next window" : ""));
        auto const row = [&](std::string const& name, std::initializer_list<std::string> cells,
                             std::string const& end) {
            out_ += "  " + padded(name, 25);
            for (std::string const& cell : cells)
                out_ += std::string(10 - std::min<std::size_t>(10, cell.size()), ' ') + cell;
            out_ += end + "\n";
        };
        auto const time = [](std::optional<double> const& s) { return !s ? "-" : *s > 0 ? seconds(*s) : "0 s"; };
        auto const size = [](double bytes) { return fixed(bytes / 1e9, 1) + " GB"; };
        auto const memory = [&](std::vector<memory_item> const& items) {
            return size(static_cast<double>(memory_plan::total(items)));
        };
        row("on average", {"step", "stall", "down", "up", "GPU", r_.machine.unified ? "" : "host"}, "");
        for (offload_way const& way : zenflow.ways)
            row(way.name,
                {time(way.step_s), time(way.stall_s), size(way.down_bytes), size(way.up_bytes), memory(way.memory.gpu),
                 r_.machine.unified ? "" : memory(way.memory.host)},
                way.fits ? "  fits" : "  TOO MUCH");
        constexpr std::string_view zenflow_items[] = {"device_gradients", "device_state",       "device_records",
                                                      "selected_columns", "publishing_weights", "sums",
                                                      "host_weights",     "selected_image"};
        for (auto const& [memory_name, items] : {std::pair("GPU: ", &zenflow.ways.back().memory.gpu),
                                                 std::pair("host: ", &zenflow.ways.back().memory.host)})
            for (memory_item const& item : *items)
                if (item.bytes != 0 && std::find(std::begin(zenflow_items), std::end(zenflow_items), item.key) !=
                                           std::end(zenflow_items)) {
                    std::string const amount = size(static_cast<double>(item.bytes));
                    out_ += wrapped("  " + padded(memory_name + item.name, 26) +
                                        std::string(9 - std::min<std::size_t>(9, amount.size()), ' ') + amount + "  ",
                                    item.meaning);
                }
        out_ += wrapped(
            "  ",
            std::string("The GPU stalls where it waits for the link or the host, and while weights are published. "
                        "Plain offloading steps when the norm is known, speculation before that. ") +
                (options.select_interval == 0
                     ? "Selections are not counted (--select-interval)."
                     : "A selection downloads the GPU's part, and then uploads the next one."));
        if (zenflow.forecast)
            out_ += "\na window of " + steps + "\n" + draw_timeline(*zenflow.forecast);
    }

    plan_result const& plan_;
    plan_request const& r_;
    std::string out_;
};

} // namespace

std::string plan_text(plan_result const& plan)
{
    return printer(plan).print();
}

} // namespace cli
