// SPDX-License-Identifier: Apache-2.0
// Charts of measurements: panels of lines and points over a count, as SVG or PNG.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct chart_point {
    double x;
    double y;
    double low; // range of y; both are y without a range
    double high;
};

// A roof is a thick line above a shaded area, level at each count, where points may be side by side.
enum class mark_style { roof, line, points };

// Series with the same label have one colour in all panels, and one entry in the legend.
struct chart_series {
    std::string label;
    mark_style style;
    std::vector<chart_point> points;
};

struct chart_panel {
    std::string title;
    std::string subtitle = {}; // below the title, in small letters
    std::vector<chart_series> series;
    double marked_x = 0; // position of a vertical line; 0: none
    std::string mark;    // label of that line
};

struct chart {
    std::string title;
    std::string subtitle;
    std::string x_label; // counts, from 1 on
    std::string y_label; // positive values; the axis begins at 0
    std::vector<chart_panel> panels;
    std::vector<std::string> notes;    // below the panels
    std::vector<std::string> warnings; // at the top, in red: reasons not to trust the measurements
};

// Throws usage_error unless the path ends in .svg, or in .png if this program can write PNG. Call it before measuring.
void check_picture(std::string const& path);

// Returns the content of the file: the text of an SVG, or a PNG.
std::string draw_chart(std::string const& path, chart const& content);

} // namespace cli
