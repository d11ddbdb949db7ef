#include "starling/report/exchange_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

struct Formula {
  const char* name;
  double (*time)(int);
};
constexpr Formula kFormulas[] = {{"star", star_time}, {"tree", tree_time}, {"ring", ring_time}};

// Returns the color of a measured curve, which is that of the formula for its algorithm.
int color_of(const std::string& name) {
  for (size_t i = 0; i < std::size(kFormulas); ++i) {
    if (name.find(kFormulas[i].name) != std::string::npos) return static_cast<int>(i) + 1;
  }
  return static_cast<int>(std::size(kFormulas)) + 1;
}

}  // namespace

double star_time(int ranks) {
  return ranks;
}

double tree_time(int ranks) {
  return 2 * std::log2(ranks);
}

double ring_time(int ranks) {
  return 2.0 * (ranks - 1) / ranks;
}

LineChart exchange_chart(const Comparison& comparison) {
  LineChart chart;
  chart.title = "Time to exchange gradients";
  chart.legend = true;
  chart.x_label = "ranks";
  chart.y_label = "|W| / bandwidth";
  chart.x_scale = chart.y_scale = Scale::kLog;
  for (const Formula& formula : kFormulas) {
    Series series;
    series.name = fmt::format("{}, formula", formula.name);
    series.run = color_of(formula.name);
    series.dashed = !comparison.exchanges.empty();
    for (int ranks = 2; ranks <= 128; ranks *= 2) series.points.emplace_back(ranks, formula.time(ranks));
    chart.series.push_back(series);
  }
  const double unit = comparison.exchange_bytes / comparison.exchange_bytes_per_s;
  for (const ExchangeCurve& curve : comparison.exchanges) {
    Series series;
    series.name = curve.name + ", measured";
    series.run = color_of(curve.name);
    series.marks = true;
    for (const auto& [ranks, seconds] : curve.seconds) series.points.emplace_back(ranks, seconds / unit);
    chart.series.push_back(series);
  }
  return chart;
}

std::string exchange_caption(const Comparison& comparison) {
  std::string out =
      "|W| is the bytes of all weights. The unit of time is |W| divided by the bandwidth of a link. Formulas "
      "for p ranks: star p; tree 2 log2 p; ring 2 (p − 1) / p.";
  if (comparison.exchanges.empty()) return out;
  return out + fmt::format(" Dots are measured with {} at {}/s of one stream.",
                           bytes_text(static_cast<uint64_t>(comparison.exchange_bytes)),
                           bytes_text(static_cast<uint64_t>(comparison.exchange_bytes_per_s)));
}

}  // namespace starling
