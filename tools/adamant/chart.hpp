// SPDX-License-Identifier: Apache-2.0
// Pictures of measurements: panels of lines and points over a count, as SVG or PNG.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct chart_point {
    double x;
    double y;
    double low; // how far y spreads; both y where it does not
    double high;
};

// A roof is a thick line over a shaded ground, level where points may stand side by side over one count.
enum class mark_style { roof, line, points };

// Series of one label have one colour in all panels, and one place in the legend.
struct chart_series {
    std::string label;
    mark_style style;
    std::vector<chart_point> points;
};

struct chart_panel {
    std::string title;
    std::string subtitle = {}; // below it, in small letters
    std::vector<chart_series> series;
    double marked_x = 0; // a vertical line, 0: none
    std::string mark;    // what stands beside it
};

struct chart {
    std::string title;
    std::string subtitle;
    std::string x_label; // of counts, from 1 on
    std::string y_label; // of values above 0, drawn from 0 on
    std::vector<chart_panel> panels;
    std::vector<std::string> notes;    // below
    std::vector<std::string> warnings; // at the top, in red: reasons not to believe it
};

// Throws usage_error unless it ends in .svg, or in .png where this program can write those. To be called before
// anything is measured.
void check_picture(std::string const& path);

// What the file of that name is to hold: the text of an SVG, or a PNG.
std::string drawn(std::string const& path, chart const& what);

} // namespace cli
