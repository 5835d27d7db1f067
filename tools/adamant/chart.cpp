// SPDX-License-Identifier: Apache-2.0
// Definitions of chart.hpp: SVG, and PNG by librsvg.
#include "chart.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#if defined(ADAMANT_CLI_PNG)
#include <librsvg/rsvg.h>
#endif

#include <adamant/error.hpp>

#include "arguments.hpp"

namespace cli {

namespace {

constexpr double mark_gap = 10; // between a bar and the marked line at the same count

// Colours for colour-blind readers, too (Okabe and Ito).
constexpr char const* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f"};
constexpr char const* roof_colour = "#444444";

constexpr double panel_width = 470;
constexpr double panel_height = 336;
constexpr double margin_left = 58;
constexpr double margin_right = 18;
constexpr double margin_top = 50;
constexpr double margin_bottom = 46;

std::string number(double value)
{
    char text[40];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

std::string escaped(std::string_view text)
{
    std::string safe;
    for (char const c : text)
        safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
    return safe;
}

// Returns 1, 2, 2.5 or 5 times a power of ten, so that about five ticks reach `most`.
double tick_step(double most)
{
    double const rough = most / 5;
    double const power = std::pow(10.0, std::floor(std::log10(rough)));
    for (double const factor : {1.0, 2.0, 2.5, 5.0})
        if (factor * power >= rough)
            return factor * power;
    return 10 * power;
}

std::string text_at(double x, double y, std::string_view content, std::string_view attributes)
{
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + std::string(attributes) + ">" + escaped(content) +
           "</text>\n";
}

std::string line_of(double x1, double y1, double x2, double y2, std::string_view attributes)
{
    return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) +
           "\" " + std::string(attributes) + "/>\n";
}

std::string stroke(std::string_view colour, double width, bool dashed = false)
{
    return "stroke=\"" + std::string(colour) + "\" stroke-width=\"" + number(width) + "\"" +
           (dashed ? " stroke-dasharray=\"5 4\"" : "");
}

class drawing {
public:
    explicit drawing(chart const& content) : chart_(content)
    {
        for (chart_panel const& panel : content.panels)
            for (chart_series const& series : panel.series) {
                if (std::find(labels_.begin(), labels_.end(), &series) == labels_.end() &&
                    std::none_of(labels_.begin(), labels_.end(),
                                 [&](chart_series const* s) { return s->label == series.label; }))
                    labels_.push_back(&series);
                for (chart_point const& p : series.points) {
                    xs_.insert(p.x);
                    most_ = std::max({most_, p.y, p.high});
                }
            }
        for (chart_panel const& panel : content.panels)
            points_in_panel_ =
                std::max(points_in_panel_, std::count_if(panel.series.begin(), panel.series.end(), has_points));
        if (xs_.empty()) // draw only the axes
            xs_.insert(1);
        most_ = most_ > 0 ? most_ : 1;
        step_ = tick_step(most_);
        most_ = std::ceil(most_ / step_ * 1.02) * step_;
        columns_ = content.panels.size() > 1 ? 2 : 1;
    }

    std::string svg()
    {
        double const width = std::max(720.0, panel_width * columns_ + 20);
        std::vector<std::string> const warnings = lines_of(chart_.warnings, width, 8);
        std::vector<std::string> const notes = lines_of(chart_.notes, width, 6.5);
        double const legend_top = 68 + 17 * static_cast<double>(warnings.size());
        std::string legend = draw_legend(width, legend_top);
        double const top = legend_top + legend_rows_ * 20 + 4;
        std::size_t const rows =
            (chart_.panels.size() + static_cast<std::size_t>(columns_) - 1) / static_cast<std::size_t>(columns_);
        double const notes_top = top + panel_height * static_cast<double>(rows) + 14;
        double const height = notes_top + 17 * static_cast<double>(notes.size()) + 10;
        double const wide = columns_ == 1 ? width - 20 : panel_width;
        std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(width) + "\" height=\"" +
                          number(height) + "\" viewBox=\"0 0 " + number(width) + " " + number(height) +
                          "\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n" +
                          "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
                          text_at(20, 28, chart_.title, "font-size=\"18\" font-weight=\"bold\" fill=\"#111111\"") +
                          text_at(20, 48, chart_.subtitle, "font-size=\"12.5\" fill=\"#444444\"");
        for (std::size_t i = 0; i < warnings.size(); ++i)
            out += text_at(20, 66 + 17 * static_cast<double>(i), warnings[i],
                           "font-size=\"12.5\" font-weight=\"bold\" fill=\"#b00020\"");
        out += legend;
        for (std::size_t i = 0; i < chart_.panels.size(); ++i)
            out += draw_panel(chart_.panels[i], 10 + wide * static_cast<double>(i % static_cast<std::size_t>(columns_)),
                              top + panel_height * static_cast<double>(i / static_cast<std::size_t>(columns_)), wide);
        for (std::size_t i = 0; i < notes.size(); ++i)
            out +=
                text_at(20, notes_top + 17 * static_cast<double>(i), notes[i], "font-size=\"11.5\" fill=\"#444444\"");
        return out + "</svg>\n";
    }

private:
    static bool has_points(chart_series const& s) { return s.style == mark_style::points; }

    // Breaks texts into lines that fit in the picture. letter: mean width of a letter.
    static std::vector<std::string> lines_of(std::vector<std::string> const& texts, double width, double letter)
    {
        auto const most = static_cast<std::size_t>((width - 40) / letter);
        std::vector<std::string> lines;
        for (std::string const& text : texts) {
            std::string line;
            for (std::size_t begin = 0; begin < text.size();) {
                std::size_t const end = std::min(text.find(' ', begin), text.size());
                if (!line.empty() && line.size() + 1 + (end - begin) > most) {
                    lines.push_back(line);
                    line.clear();
                }
                line += line.empty() ? "" : " ";
                line.append(text, begin, end - begin);
                begin = end + 1;
            }
            lines.push_back(line);
        }
        return lines;
    }

    std::string colour_of(std::string const& label) const
    {
        std::size_t next = 0;
        for (chart_series const* s : labels_) {
            if (s->label == label)
                return s->style == mark_style::roof ? roof_colour : colours[next % std::size(colours)];
            next += s->style != mark_style::roof;
        }
        return colours[0];
    }
    // Each series of points has its own shape and colour.
    std::string mark_at(double x, double y, std::string const& label) const
    {
        std::size_t shape = 0;
        for (chart_series const* s : labels_) {
            if (s->label == label)
                break;
            shape += s->style == mark_style::points;
        }
        std::string const fill = " fill=\"" + colour_of(label) + "\"/>\n";
        auto const polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
            std::string points;
            for (auto const& [dx, dy] : corners)
                points += number(x + dx) + "," + number(y + dy) + " ";
            return "<polygon points=\"" + points + "\"" + fill;
        };
        switch (shape % 8) {
        case 0: return "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"5\"" + fill;
        case 1: return polygon({{-4.5, -4.5}, {4.5, -4.5}, {4.5, 4.5}, {-4.5, 4.5}});
        case 2: return polygon({{0, -6}, {5.5, 4}, {-5.5, 4}});
        case 3: return polygon({{0, -6}, {6, 0}, {0, 6}, {-6, 0}});
        case 4: return polygon({{0, 6}, {5.5, -4}, {-5.5, -4}});
        case 5: // plus
            return polygon({{-2, -6},
                            {2, -6},
                            {2, -2},
                            {6, -2},
                            {6, 2},
                            {2, 2},
                            {2, 6},
                            {-2, 6},
                            {-2, 2},
                            {-6, 2},
                            {-6, -2},
                            {-2, -2}});
        case 6: // cross
            return polygon({{-5.5, -3},
                            {-3, -5.5},
                            {0, -2.5},
                            {3, -5.5},
                            {5.5, -3},
                            {2.5, 0},
                            {5.5, 3},
                            {3, 5.5},
                            {0, 2.5},
                            {-3, 5.5},
                            {-5.5, 3},
                            {-2.5, 0}});
        default: // hourglass
            return polygon({{-5, -5.5}, {5, -5.5}, {-5, 5.5}, {5, 5.5}});
        }
    }
    std::string sample(chart_series const& s, double x, double y) const
    {
        if (s.style == mark_style::points)
            return mark_at(x + 12, y, s.label);
        return line_of(x, y, x + 24, y,
                       stroke(colour_of(s.label), s.style == mark_style::roof ? 3 : 1.8, s.style == mark_style::line));
    }
    std::string draw_legend(double width, double top)
    {
        std::string out;
        double x = 20;
        double y = top;
        legend_rows_ = 1;
        for (chart_series const* s : labels_) {
            double const needed = 32 + 6.6 * static_cast<double>(s->label.size()) + 18;
            if (x > 20 && x + needed > width - 10) {
                x = 20;
                y += 20;
                ++legend_rows_;
            }
            out += sample(*s, x, y) + text_at(x + 30, y + 4, s->label, "font-size=\"12\" fill=\"#111111\"");
            x += needed;
        }
        return out;
    }

    std::string draw_panel(chart_panel const& panel, double left, double top, double width) const
    {
        double const x0 = left + margin_left;
        double const x1 = left + width - margin_right;
        double const y0 = top + panel_height - margin_bottom;
        double const y1 = top + margin_top;
        double const least = *xs_.begin();
        double const greatest = *xs_.rbegin();
        bool const by_doubling = greatest > 16 * least;
        auto const share = [&](double x) {
            return greatest == least ? 0.5
                   : by_doubling     ? std::log(x / least) / std::log(greatest / least)
                                     : (x - least) / (greatest - least);
        };
        // Points at one count are side by side, within the axes and separate from those of the next count.
        double gap = 1; // the narrowest gap between counts, as a share
        for (auto x = xs_.begin(); std::next(x) != xs_.end(); ++x)
            gap = std::min(gap, share(*std::next(x)) - share(*x));
        double const other_points = static_cast<double>(points_in_panel_ - 1);
        double const band = (x1 - x0) / static_cast<double>(xs_.size());
        double const width_per_count = xs_.size() == 1 ? band : gap * (x1 - x0 - band);
        double const half = std::min(std::max(5.5 * other_points + 12, 26.0), 0.46 * width_per_count);
        double const point_distance = other_points > 0 ? std::max(2 * (half - 8) / other_points, 1.0) : 0;
        double const margin = std::max(band / 2, half + 2);
        auto const place = [&](double x) { return x0 + margin + share(x) * (x1 - x0 - 2 * margin); };
        auto const height = [&](double y) { return y0 - y / most_ * (y0 - y1); };
        std::string out =
            text_at(x0, top + 20, panel.title, "font-size=\"13.5\" font-weight=\"bold\" fill=\"#111111\"") +
            text_at(x0, top + 37, panel.subtitle, "font-size=\"11\" fill=\"#444444\"");
        for (double y = 0; y < most_ + step_ / 2; y += step_)
            out += line_of(x0, height(y), x1, height(y), stroke("#e2e2e2", 1)) +
                   text_at(x0 - 7, height(y) + 4, number(y), "font-size=\"11\" text-anchor=\"end\" fill=\"#444444\"");
        double last = -1e9;
        for (double const x : xs_)
            if (place(x) - last > 22) {
                last = place(x);
                out += line_of(last, y0, last, y0 + 4, stroke("#444444", 1)) +
                       text_at(last, y0 + 17, number(x), "font-size=\"11\" text-anchor=\"middle\" fill=\"#444444\"");
            }
        out += line_of(x0, y0, x1, y0, stroke("#444444", 1)) +
               text_at((x0 + x1) / 2, y0 + 35, chart_.x_label,
                       "font-size=\"12\" text-anchor=\"middle\" fill=\"#111111\"") +
               "<g transform=\"translate(" + number(left + 14) + "," + number((y0 + y1) / 2) + ") rotate(-90)\">" +
               text_at(0, 0, chart_.y_label, "font-size=\"12\" text-anchor=\"middle\" fill=\"#111111\"") + "</g>\n";
        double next_offset =
            -point_distance / 2 *
            static_cast<double>(std::count_if(panel.series.begin(), panel.series.end(), has_points) - 1);
        for (mark_style const style : {mark_style::roof, mark_style::line, mark_style::points})
            for (chart_series const& s : panel.series)
                if (s.style == style) {
                    double const offset = has_points(s) ? next_offset : 0; // whiskers must not overlap
                    out += draw_series(
                        s, [&](double x) { return place(x) + offset; }, height, y0, half);
                    next_offset += has_points(s) ? point_distance : 0;
                }
        if (panel.marked_x > 0) {
            double const x = place(panel.marked_x);
            bool const right = x > (x0 + x1) / 2;
            // The line is interrupted at bars, which it would hide.
            double lowest = y1;
            double highest = y0;
            for (chart_series const& s : panel.series)
                for (chart_point const& p : s.points)
                    if (s.style == mark_style::points && p.x == panel.marked_x) {
                        lowest = std::max(lowest, std::max(height(p.low), height(p.y)) + mark_gap);
                        highest = std::min(highest, std::min(height(p.high), height(p.y)) - mark_gap);
                    }
            for (auto const& [begin_y, end_y] : {std::pair(y0, lowest), std::pair(std::min(highest, lowest), y1)})
                if (begin_y > end_y)
                    out += line_of(x, begin_y, x, end_y, stroke("#d55e00", 1.5, true));
            out += text_at(x + (right ? -6 : 6), y0 - 10, panel.mark,
                           right ? "font-size=\"12\" text-anchor=\"end\" fill=\"#d55e00\""
                                 : "font-size=\"12\" fill=\"#d55e00\"");
        }
        return out;
    }
    template <class Place, class Height>
    std::string draw_series(chart_series const& s, Place const& place, Height const& height, double ground,
                            double half) const
    {
        if (s.points.empty())
            return "";
        std::string const colour = colour_of(s.label);
        std::string out;
        if (s.style != mark_style::points) {
            std::string path;
            double const level = s.style == mark_style::roof ? half : 0;
            for (chart_point const& p : s.points)
                for (double const offset : {-level, level})
                    path += number(place(p.x) + offset) + "," + number(height(p.y)) + " ";
            if (s.style == mark_style::roof)
                out += "<polygon points=\"" + number(place(s.points.front().x) - level) + "," + number(ground) + " " +
                       path + number(place(s.points.back().x) + level) + "," + number(ground) +
                       "\" fill=\"#f1f1f1\"/>\n";
            out += "<polyline points=\"" + path + "\" fill=\"none\" " +
                   stroke(colour, s.style == mark_style::roof ? 3 : 1.8, s.style == mark_style::line) + "/>\n";
            return out;
        }
        for (chart_point const& p : s.points) {
            if (p.high > p.low)
                out += line_of(place(p.x), height(p.low), place(p.x), height(p.high), stroke(colour, 1.4)) +
                       line_of(place(p.x) - 4, height(p.low), place(p.x) + 4, height(p.low), stroke(colour, 1.4)) +
                       line_of(place(p.x) - 4, height(p.high), place(p.x) + 4, height(p.high), stroke(colour, 1.4));
            out += mark_at(place(p.x), height(p.y), s.label);
        }
        return out;
    }

    chart const& chart_;
    std::vector<chart_series const*> labels_; // the first series of each label
    std::set<double> xs_;
    double most_ = 0;
    double step_ = 1;
    std::ptrdiff_t points_in_panel_ = 1; // maximum number of series of points in a panel
    int columns_ = 1;
    int legend_rows_ = 1;
};

bool ends_in(std::string const& path, std::string_view ending)
{
    return path.size() > ending.size() && path.ends_with(ending);
}

#if defined(ADAMANT_CLI_PNG)
std::string png_of(std::string const& svg)
{
    // Two pixels per unit of the SVG, for sharp text on screens.
    auto const fail = [&](std::string const& why) {
        throw adamant::unavailable("adamant: the picture could not be drawn: " + why);
    };
    GError* error = nullptr;
    RsvgHandle* const handle =
        rsvg_handle_new_from_data(reinterpret_cast<guint8 const*>(svg.data()), svg.size(), &error);
    if (handle == nullptr)
        fail(error->message);
    double width = 0;
    double height = 0;
    rsvg_handle_get_intrinsic_size_in_pixels(handle, &width, &height);
    cairo_surface_t* const surface =
        cairo_image_surface_create(CAIRO_FORMAT_ARGB32, static_cast<int>(2 * width), static_cast<int>(2 * height));
    cairo_t* const cairo = cairo_create(surface);
    RsvgRectangle const whole{0, 0, 2 * width, 2 * height};
    bool const is_drawn = rsvg_handle_render_document(handle, cairo, &whole, &error) != 0;
    std::string png;
    cairo_status_t const written = cairo_surface_write_to_png_stream(
        surface,
        [](void* png_text, unsigned char const* data, unsigned length) {
            static_cast<std::string*>(png_text)->append(reinterpret_cast<char const*>(data), length);
            return CAIRO_STATUS_SUCCESS;
        },
        &png);
    cairo_destroy(cairo);
    cairo_surface_destroy(surface);
    g_object_unref(handle);
    if (!is_drawn)
        fail(error->message);
    if (written != CAIRO_STATUS_SUCCESS)
        fail(cairo_status_to_string(written));
    return png;
}
#endif

} // namespace

void check_picture(std::string const& path)
{
    if (ends_in(path, ".svg"))
        return;
    if (!ends_in(path, ".png"))
        throw usage_error("--plot is '" + path + "', but a picture's name ends in .svg or .png");
#if !defined(ADAMANT_CLI_PNG)
    throw usage_error("--plot is '" + path +
                      "', but this program was compiled without librsvg, which PNG needs; name it .svg, or install "
                      "librsvg (librsvg2-dev) and compile again");
#endif
}

std::string draw_chart([[maybe_unused]] std::string const& path, chart const& content)
{
    std::string const svg = drawing(content).svg();
#if defined(ADAMANT_CLI_PNG)
    if (ends_in(path, ".png"))
        return png_of(svg);
#endif
    return svg;
}

} // namespace cli
