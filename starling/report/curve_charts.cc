#include "starling/report/curve_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/report/loss_curve.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr size_t kAveragePoints = 160;  // points of a line
constexpr size_t kRawIntervals = 120;   // intervals of a faint line, each with two points

// Against describes one horizontal axis of the loss.
struct Against {
  const char* title;
  const char* label;
  Scale scale;
  double RunPoint::* x;
  std::function<std::string(double)> text;
};

std::vector<Against> axes() {
  const auto bytes = [](double value) { return bytes_text(static_cast<uint64_t>(std::max(0.0, value))); };
  return {{"Training loss against time", "seconds of steps", Scale::kLinear, &RunPoint::seconds, nullptr},
          {"Training loss against samples", "samples", Scale::kLinear, &RunPoint::samples, nullptr},
          {"Training loss against bytes", "bytes sent by all ranks and servers", Scale::kLog,
           &RunPoint::bytes, bytes}};
}

Series series_of(const std::string& name, int color, const std::vector<RunPoint>& points,
                 double RunPoint::* x) {
  Series series;
  series.name = name;
  series.run = color;
  for (const RunPoint& point : points) {
    if (std::isfinite(point.loss)) series.points.emplace_back(point.*x, point.loss);
  }
  return series;
}

// Returns the scale of the loss. It is logarithmic if the averages fall by more than a factor of 8.
Scale scale_of(const std::vector<Series>& series) {
  double least = 1e300, most = 0;
  for (const Series& line : series) {
    for (const auto& [x, loss] : line.points) {
      least = std::min(least, loss);
      most = std::max(most, loss);
    }
  }
  return least > 0 && most > 8 * least ? Scale::kLog : Scale::kLinear;
}

LineChart loss_chart(const Comparison& comparison, const Picture& picture, const Against& against) {
  LineChart chart;
  chart.title = against.title;
  chart.x_label = against.label;
  chart.y_label = "loss";
  chart.x_scale = against.scale;
  chart.x_text = against.text;
  const std::vector<std::string> names = names_of(comparison);
  const int64_t steps = smoothing_steps(comparison);
  std::vector<Series> averages;
  for (size_t place = 0; place < picture.runs.size(); ++place) {
    const size_t run = picture.runs[place];
    const std::vector<RunPoint>& raw = comparison.runs[run].steps;
    const int color = color_of(picture, place);
    averages.push_back(
        series_of(names[run], color, sampled(smoothed(raw, steps), kAveragePoints), against.x));
    if (steps == 1) continue;
    chart.series.push_back(series_of(names[run], color, extremes(raw, kRawIntervals), against.x));
    chart.series.back().faint = true;
  }
  chart.y_scale = scale_of(averages);
  chart.series.insert(chart.series.end(), averages.begin(), averages.end());
  return chart;
}

LineChart accuracy_chart(const Comparison& comparison, const Picture& picture) {
  LineChart chart;
  chart.title = "Test accuracy against time";
  chart.x_label = "seconds of steps";
  chart.y_label = "accuracy";
  chart.y_text = [](double share) { return fmt::format("{:.4g} %", 100 * share); };
  const bool repeated = std::any_of(picture.runs.begin(), picture.runs.end(),
                                    [&](size_t run) { return comparison.runs[run].evaluations.size() > 1; });
  if (!repeated) return chart;  // one point per run is no curve
  const std::vector<std::string> names = names_of(comparison);
  for (size_t place = 0; place < picture.runs.size(); ++place) {
    const RunRecord& run = comparison.runs[picture.runs[place]];
    Series series;
    series.name = names[picture.runs[place]];
    series.run = color_of(picture, place);
    series.marks = run.evaluations.size() <= 12;
    for (const RunPoint& point : run.evaluations) {
      if (point.accuracy >= 0) series.points.emplace_back(point.seconds, point.accuracy);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

int64_t smoothing_steps(const Comparison& comparison) {
  size_t longest = 0;
  for (const RunRecord& run : comparison.runs) longest = std::max(longest, run.steps.size());
  return smoothing_steps(longest);
}

std::string smoothing_note(int64_t steps) {
  if (steps == 1) return "";
  return fmt::format(
      "Bold lines: average of about {} steps; raw values faint. The average is exponential and trailing: the "
      "newest step weighs {:.3g}. Faint lines end at the frame.",
      steps, smoothing_weight(steps));
}

int color_of(const Picture& picture, size_t place) {
  return picture.runs[place] == 0 ? 0 : static_cast<int>(place);
}

std::vector<LineChart> curve_charts(const Comparison& comparison, const Picture& picture) {
  std::vector<LineChart> charts;
  for (const Against& against : axes()) charts.push_back(loss_chart(comparison, picture, against));
  charts.push_back(accuracy_chart(comparison, picture));
  std::erase_if(charts, [](const LineChart& chart) { return !has_points(chart); });
  return charts;
}

}  // namespace starling
