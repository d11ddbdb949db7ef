#include "starling/report/report_data.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "starling/report/curve_charts.h"
#include "starling/report/loss_curve.h"

namespace starling {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMostSteps = 2000;

// Returns the value with six significant digits, or null if it is not finite.
OrderedJson rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

OrderedJson columns_of(const std::vector<RunPoint>& points) {
  OrderedJson columns = {{"step", OrderedJson::array()},
                         {"samples", OrderedJson::array()},
                         {"seconds", OrderedJson::array()},
                         {"bytes", OrderedJson::array()},
                         {"loss", OrderedJson::array()}};
  for (const RunPoint& point : points) {
    columns["step"].push_back(point.step);
    columns["samples"].push_back(std::llround(point.samples));
    columns["seconds"].push_back(rounded(point.seconds));
    columns["bytes"].push_back(rounded(point.bytes));
    columns["loss"].push_back(rounded(point.loss));
  }
  return columns;
}

// Returns every k-th point and the last point. k is the least number that leaves at most kMostSteps points.
std::vector<RunPoint> limited(const std::vector<RunPoint>& points) {
  const size_t k = (points.size() + kMostSteps - 1) / kMostSteps;
  std::vector<RunPoint> out;
  for (size_t i = 0; i < points.size(); ++i) {
    if ((i + 1) % k == 0 || i + 1 == points.size()) out.push_back(points[i]);
  }
  return out;
}

OrderedJson curve_of(const RunRecord& run, int64_t steps) {
  OrderedJson curve = columns_of(limited(run.steps));
  curve["average"] = OrderedJson::array();
  for (const RunPoint& point : limited(smoothed(run.steps, steps)))
    curve["average"].push_back(rounded(point.loss));
  return curve;
}

OrderedJson evaluations_of(const RunRecord& run) {
  OrderedJson evaluations = columns_of(run.evaluations);
  evaluations["accuracy"] = OrderedJson::array();
  for (const RunPoint& point : run.evaluations)
    evaluations["accuracy"].push_back(point.accuracy < 0 ? OrderedJson() : rounded(point.accuracy));
  return evaluations;
}

}  // namespace

std::string report_data(const Comparison& comparison) {
  const int64_t steps = smoothing_steps(comparison);
  OrderedJson json = {
      {"title", comparison.title}, {"smoothing_steps", steps}, {"runs", OrderedJson::array()}};
  const std::vector<Compared> runs = compared(comparison);
  for (size_t i = 0; i < runs.size(); ++i) {
    OrderedJson run = OrderedJson::parse(to_json(runs[i]));
    for (auto& [key, value] : run.items()) {
      if (value.is_number_float()) value = rounded(value.get<double>());
    }
    run["curve"] = curve_of(comparison.runs[i], steps);
    run["evaluations"] = evaluations_of(comparison.runs[i]);
    json["runs"].push_back(std::move(run));
  }
  std::string text = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

}  // namespace starling
