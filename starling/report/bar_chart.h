// Charts with one horizontal row for each item, as SVG. Colors and type come from the report's style
// (report_style.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace starling {

// BarRow is one row of a BarChart. Its segments follow each other and make one bar.
struct BarRow {
  std::string name;
  std::vector<double> segments;
  bool pale = false;  // a prediction among measured rows
};

// A chart of bars on a common linear scale.
struct BarChart {
  std::string title;
  std::vector<std::string> segment_names;   // for the legend; segment i has the color of run i + 1
  std::function<std::string(double)> text;  // the text of a row's sum; if empty, short_number
  std::vector<BarRow> rows;
};

// Returns the chart as an <svg> element.
std::string svg_of(const BarChart& chart);

// PairRow is one row of a PairChart, with a dot for each of two values and a line between them. A value of 0
// or less has no dot.
struct PairRow {
  std::string name;
  double first = 0, second = 0;
};

// A chart of pairs. All rows share one logarithmic axis.
struct PairChart {
  std::string title;
  std::string first_name, second_name;
  std::string x_label;
  std::function<std::string(double)> text;  // the text of a tick; if empty, short_number
  std::vector<PairRow> rows;
};

// Returns the chart as an <svg> element, or an empty string if no value is positive.
std::string svg_of(const PairChart& chart);

}  // namespace starling
