// Rows of horizontal bars, and of pairs of dots, as SVG (page_style.h has colours and type).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace starling {

// One row: its segments stand one behind the other.
struct BarRow {
  std::string name;
  std::vector<double> segments;
  bool outlined = false;  // a formula's, beside measured ones
};

struct BarChart {
  std::string title;
  std::vector<std::string> segment_names;   // the legend; the colours are those of the runs 1, 2, …
  std::function<std::string(double)> text;  // of a row's sum
  std::vector<BarRow> rows;
};

std::string svg_of(const BarChart& chart);

// One row: two values joined by a line, on a common logarithmic axis. Values ≤ 0 have no dot.
struct PairRow {
  std::string name;
  double first = 0, second = 0;
};

struct PairChart {
  std::string title;
  std::string first_name, second_name;
  std::string x_label;
  std::function<std::string(double)> text;  // of a tick
  std::vector<PairRow> rows;
};

std::string svg_of(const PairChart& chart);

}  // namespace starling
