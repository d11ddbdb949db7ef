// Line charts as SVG. Colors and type come from the report's style (report_style.h).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

// The scale of an axis.
enum class Scale { kLinear, kLog };

// One line of a chart.
struct Series {
  std::string name;
  int run = 0;  // selects the color, and the legend button that hides the series; 0 is the neutral color
  bool dashed = false;
  bool marks = false;  // draws a dot at each point
  std::vector<std::pair<double, double>> points;
  bool faint = false;  // drawn behind the other series, without a name, and cut off where it leaves the frame
};

// A chart of lines.
struct LineChart {
  std::string title;
  std::string x_label, y_label;
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear;
  std::function<std::string(double)> x_text, y_text;  // the text of a tick; if empty, short_number
  std::vector<Series> series;
  bool legend = false;  // names the series inside the frame, for a chart without the legend of a section
};

// Draws the chart. A scale cannot show a value that is not finite, and a logarithmic scale none that is 0 or
// less. Such points are left out. The vertical axis shows all values of series that are not faint, and 96 %
// of those that are. It begins at or below the least of them. The labels say which axes are logarithmic.
std::string svg_of(const LineChart& chart);

// Returns whether the chart has a point that its scales can show.
bool has_points(const LineChart& chart);

// Returns the names of the series that have points, but none that the scales can show. Faint series count
// not.
std::vector<std::string> invisible_series(const LineChart& chart);

// Returns a short form of a number, such as "0.05", "250", "1.5k" or "20M".
std::string short_number(double value);

// Returns the ticks of an axis from `low` to `high`. On a linear axis they are the multiples of a step, which
// is 1, 2 or 5 times a power of ten. On a logarithmic axis they are at 1, 2 or 5 times a power of ten. If the
// axis is longer than 2.5 decades, they are only at the powers of ten. `low` must be above 0 on a logarithmic
// axis.
std::vector<double> ticks(double low, double high, Scale scale);

}  // namespace starling
