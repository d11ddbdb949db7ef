// A chart of lines as SVG, without script or style of its own: colours and type come from the page (page_style.h).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

enum class Scale { kLinear, kLog };

struct Series {
  std::string name;
  int run = 0;  // which colour, and which toggle of the page turns it off; 0 is neutral
  bool dashed = false;
  bool marks = false;  // a dot at each point
  std::vector<std::pair<double, double>> points;
};

struct LineChart {
  std::string title;
  std::string x_label, y_label;
  Scale x_scale = Scale::kLinear, y_scale = Scale::kLinear;
  std::function<std::string(double)> x_text, y_text;  // of a tick; without one: short_number
  std::vector<Series> series;
};

// Points that a scale cannot show (not finite, or ≤ 0 on a logarithmic one) are left out.
std::string svg_of(const LineChart& chart);

// "0.05", "250", "1.5k", "20M".
std::string short_number(double value);

// Where an axis from `low` to `high` has its marks: 1, 2 or 5 times a power of ten.
std::vector<double> ticks(double low, double high, Scale scale);

}  // namespace starling
