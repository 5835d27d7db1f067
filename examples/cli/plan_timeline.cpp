// SPDX-License-Identifier: Apache-2.0
// The drawing of a step: who is busy when.

#include "plan_result.hpp"

#include <algorithm>
#include <cmath>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t label_columns = 12;
constexpr std::size_t bar_columns = 64;
constexpr std::size_t ticks = 4;

} // namespace

std::string draw_timeline(step_forecast const& step)
{
    auto const column = [&](double s) {
        double const share = step.step_s > 0 ? s / step.step_s : 0;
        return static_cast<std::size_t>(std::lround(share * static_cast<double>(bar_columns)));
    };
    std::string out;
    for (forecast_lane const on : {forecast_lane::backward, forecast_lane::down, forecast_lane::cpu, forecast_lane::up,
                                   forecast_lane::device, forecast_lane::forward}) {
        // What is computed, and what is copied.
        char const mark = on == forecast_lane::down || on == forecast_lane::up ? '=' : '#';
        std::string const label = on == forecast_lane::cpu      ? "CPU"
                                  : on == forecast_lane::device ? "GPU step"
                                                                : name(on);
        std::string bar(bar_columns, ' ');
        double busy = 0;
        for (forecast_span const& span : step.timeline) {
            if (span.on != on)
                continue;
            std::size_t const begin = std::min(column(span.begin_s), bar_columns - 1);
            std::size_t const end = std::max(column(span.end_s), begin + 1); // short work is seen as well
            std::fill_n(bar.begin() + static_cast<std::ptrdiff_t>(begin), std::min(end, bar_columns) - begin, mark);
            busy += span.end_s - span.begin_s;
        }
        out += "  " + label + std::string(label_columns - 2 - label.size(), ' ') + "|" + bar + "| " +
               (busy > 0 ? seconds(busy) : "-") + "\n";
    }
    // Under the bars, times at every quarter.
    std::string axis(label_columns, ' ');
    for (std::size_t i = 0; i <= ticks; ++i) {
        double const s = step.step_s * static_cast<double>(i) / ticks;
        std::string const text = i == 0 ? "0" : seconds(s);
        std::size_t const at = label_columns + 1 + bar_columns * i / ticks;
        std::size_t const begin = i == 0 ? at - 1 : at - text.size() / 2;
        axis.resize(std::max(axis.size(), begin), ' ');
        axis += text;
    }
    return out + axis + "\n";
}

} // namespace cli
