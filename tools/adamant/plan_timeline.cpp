// SPDX-License-Identifier: Apache-2.0
// The drawing of a step, or of a window of steps: the busy times of CPU, GPU and link.

#include "plan_result.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t label_columns = 12;
constexpr std::size_t bar_columns = 64;
constexpr std::size_t ticks = 4;

struct row {
    std::string label;
    char mark;
    std::vector<std::pair<double, double>> spans = {}; // begin and end of busy times
};

constexpr char compute_mark = '#';
constexpr char copy_mark = '=';

std::string draw(std::vector<row> const& rows, double end_s)
{
    auto const column = [&](double s) {
        double const share = end_s > 0 ? s / end_s : 0;
        return static_cast<std::size_t>(std::lround(share * static_cast<double>(bar_columns)));
    };
    std::string out;
    for (row const& item : rows) {
        std::string bar(bar_columns, ' ');
        double busy = 0;
        for (auto const& [begin_s, end] : item.spans) {
            std::size_t const first = std::min(column(begin_s), bar_columns - 1);
            std::size_t const end_column = std::max(column(end), first + 1); // at least one column
            std::fill_n(bar.begin() + static_cast<std::ptrdiff_t>(first), std::min(end_column, bar_columns) - first,
                        item.mark);
            busy += end - begin_s;
        }
        out += "  " + item.label + std::string(label_columns - 2 - item.label.size(), ' ') + "|" + bar + "| " +
               (busy > 0 ? seconds(busy) : "-") + "\n";
    }
    // Below the bars, the times at every quarter.
    std::string axis(label_columns, ' ');
    for (std::size_t i = 0; i <= ticks; ++i) {
        double const s = end_s * static_cast<double>(i) / ticks;
        std::string const text = i == 0 ? "0" : seconds(s);
        std::size_t const tick = label_columns + 1 + bar_columns * i / ticks;
        std::size_t const begin = i == 0 ? tick - 1 : tick - text.size() / 2;
        axis.resize(std::max(axis.size(), begin), ' ');
        axis += text;
    }
    return out + axis + "\n";
}

} // namespace

std::string draw_timeline(step_forecast const& step)
{
    std::vector<row> rows{{"backward", compute_mark}, {"down", copy_mark},        {"CPU", compute_mark},
                          {"up", copy_mark},          {"GPU step", compute_mark}, {"forward", compute_mark}};
    for (forecast_span const& span : step.timeline)
        rows[static_cast<std::size_t>(span.row)].spans.emplace_back(span.begin_s, span.end_s);
    return draw(rows, step.step_s);
}

std::string draw_timeline(zenflow_forecast const& window)
{
    std::vector<row> rows{{"backward", compute_mark}, {"down", copy_mark}, {"CPU sums", compute_mark},
                          {"CPU step", compute_mark}, {"up", copy_mark},   {"GPU step", compute_mark},
                          {"forward", compute_mark}};
    for (zenflow_span const& span : window.timeline)
        rows[static_cast<std::size_t>(span.row)].spans.emplace_back(span.begin_s, span.end_s);
    return draw(rows, window.window_s);
}

} // namespace cli
