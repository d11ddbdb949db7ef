#include "starling/report/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/report/line_chart.h"
#include "starling/report/markup.h"

namespace starling {
namespace {

constexpr double kWidth = 440, kTop = 50, kRow = 22;
constexpr double kLetter = 7.5;  // mean width of a letter of 13 units

std::string opening(const std::string& css, const std::string& title, double height) {
  return fmt::format("<svg class=\"{}\" viewBox=\"0 0 {:g} {:.0f}\" role=\"img\" aria-label=\"{}\">", css,
                     kWidth, height, escaped(title)) +
         svg_text(0, 14, title, "start", "title");
}

// Returns a line under the title with a square in the color of each name.
std::string legend(const std::vector<std::string>& names) {
  std::string out;
  double x = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"25\" width=\"10\" height=\"10\" rx=\"2\"/>",
                       color_class(static_cast<int>(i) + 1), x);
    out += svg_text(x + 15, 34, names[i]);
    x += 30 + kLetter * static_cast<double>(names[i].size());
  }
  return out;
}

template <typename Row>
double name_width(const std::vector<Row>& rows) {
  size_t longest = 0;
  for (const Row& row : rows) longest = std::max(longest, row.name.size());
  return std::min(205.0, 10 + kLetter * static_cast<double>(longest));
}

// Replaces the middle of a name that is too wide by "…".
std::string fitting(const std::string& name, double width) {
  const auto letters = static_cast<size_t>((width - 10) / kLetter);
  if (name.size() <= letters || letters < 6) return name;
  const size_t end = letters / 2;
  return name.substr(0, letters - end - 1) + "…" + name.substr(name.size() - end);
}

double sum_of(const BarRow& row) {
  return std::accumulate(row.segments.begin(), row.segments.end(), 0.0);
}

}  // namespace

std::string svg_of(const BarChart& chart) {
  const double left = name_width(chart.rows), right = 66;
  double most = 0;
  for (const BarRow& row : chart.rows) most = std::max(most, sum_of(row));
  const double scale = most > 0 ? (kWidth - left - right) / most : 0;
  std::string out = opening("bars", chart.title, kTop + kRow * static_cast<double>(chart.rows.size()) + 4) +
                    legend(chart.segment_names);
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    const BarRow& row = chart.rows[i];
    const double y = kTop + kRow * static_cast<double>(i);
    double x = left;
    out += fmt::format("<g data-name=\"{}\" data-value=\"{:g}\">", escaped(row.name), sum_of(row));
    out += svg_text(left - 8, y + 13, fitting(row.name, left), "end");
    for (size_t s = 0; s < row.segments.size(); ++s) {
      const double width = row.segments[s] * scale;
      if (width <= 0) continue;
      out += fmt::format("<rect class=\"{}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\"/>",
                         color_class(static_cast<int>(s) + 1), row.pale ? " faint" : "", x, y + 2,
                         std::max(1.0, width - 1.5));
      x += width;
    }
    out += svg_text(x + 6, y + 13, chart.text ? chart.text(sum_of(row)) : short_number(sum_of(row))) + "</g>";
  }
  return out + "</svg>";
}

std::string svg_of(const PairChart& chart) {
  const double left = name_width(chart.rows), right = 16;
  const double bottom = kTop + kRow * static_cast<double>(chart.rows.size());
  double low = 1e300, high = 0;
  for (const PairRow& row : chart.rows) {
    for (const double value : {row.first, row.second}) {
      if (value > 0) low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (!(high > 0)) return "";
  if (high < low * 10) low = high / 10;
  const auto place = [&](double v) {
    return left + std::log10(v / low) / std::log10(high / low) * (kWidth - left - right);
  };
  std::string out =
      opening("pairs", chart.title, bottom + 40) + legend({chart.first_name, chart.second_name});
  const double decades = std::log10(high / low);
  for (const double tick : ticks(low, high, Scale::kLog)) {
    if (decades > 1 && std::abs(std::log10(tick) - std::round(std::log10(tick))) > 1e-6) continue;
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>",
                       place(tick), kTop, bottom);
    out += svg_text(place(tick), bottom + 16, chart.text ? chart.text(tick) : short_number(tick), "middle");
  }
  for (size_t i = 0; i < chart.rows.size(); ++i) {
    const PairRow& row = chart.rows[i];
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5);
    out += fmt::format("<g data-name=\"{}\" data-first=\"{:g}\" data-second=\"{:g}\">", escaped(row.name),
                       row.first, row.second);
    out += svg_text(left - 10, y + 4, fitting(row.name, left), "end");
    if (row.first > 0 && row.second > 0)
      out += fmt::format("<line class=\"join\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\"/>",
                         place(row.first), y, place(row.second));
    const auto dot = [&](double value, int color) {
      if (value > 0)
        out += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>", color_class(color),
                           place(value), y);
    };
    dot(row.first, 1);
    dot(row.second, 2);
    out += "</g>";
  }
  return out + svg_text((left + kWidth - right) / 2, bottom + 34, chart.x_label, "middle", "label") +
         "</svg>";
}

}  // namespace starling
