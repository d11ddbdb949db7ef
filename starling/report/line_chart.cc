#include "starling/report/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/report/markup.h"

namespace starling {
namespace {

constexpr double kWidth = 440, kHeight = 300;
constexpr double kLeft = 52, kRight = 14, kTop = 30, kBottom = 46;
constexpr double kFewDecades = 2.5;  // a longer logarithmic axis has ticks at powers of ten only

// Axis maps values to SVG units.
struct Axis {
  Scale scale = Scale::kLinear;
  double low = 0, high = 1;
  double from = 0, to = 1;  // SVG units

  bool shows(double value) const { return std::isfinite(value) && (scale == Scale::kLinear || value > 0); }
  double place(double value) const {
    const auto on = [this](double v) { return scale == Scale::kLog ? std::log10(v) : v; };
    return from + (on(value) - on(low)) / (on(high) - on(low)) * (to - from);
  }
  // Returns the axis as text, from which the report's script computes values of positions.
  std::string text() const {
    return fmt::format("{} {:g} {:g} {:.1f} {:.1f}", scale == Scale::kLog ? "log" : "lin", low, high, from,
                       to);
  }
};

double nice_step(double range) {
  const double rough = range / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (rough <= step * power * 1.0001) return step * power;
  }
  return 10 * power;
}

Axis axis_of(const std::vector<double>& values, Scale scale, double from, double to) {
  Axis axis{scale, 0, 1, from, to};
  if (values.empty()) {
    if (scale == Scale::kLog) axis.low = 0.1;
    return axis;
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  axis.low = *least;
  axis.high = *most;
  if (scale == Scale::kLinear) {
    if (axis.low > 0 && axis.low < 0.5 * axis.high) axis.low = 0;
    if (axis.high <= axis.low) axis.high = axis.low + 1;
  } else if (axis.high < axis.low * 1.5) {
    axis.low /= 1.5;
    axis.high *= 1.5;
  }
  return axis;
}

// Lowers the beginning of an axis to a tick, or below the least value, so that no line lies on the frame.
void add_room_below(Axis& axis) {
  constexpr double kMargin = 1.5;
  if (axis.scale == Scale::kLinear) {
    const double step = nice_step(axis.high - axis.low);
    axis.low = std::floor(axis.low / step + 1e-9) * step;
    return;
  }
  const double power = std::pow(10, std::floor(std::log10(axis.low) + 1e-9));
  const bool by_powers = std::log10(axis.high / axis.low) > kFewDecades;
  double below = by_powers ? axis.low / kMargin : power;
  for (const double factor : {2.0, 5.0}) {
    if (!by_powers && factor * power <= axis.low * (1 + 1e-9)) below = factor * power;
  }
  axis.low = below;
}

// Returns the label of an axis, which says whether the axis is logarithmic.
std::string label_text(const std::string& label, Scale scale) {
  return scale == Scale::kLog ? label + " (logarithmic)" : label;
}

// Returns a line with the name of each series, in the upper left corner of the frame.
std::string legend(const LineChart& chart) {
  constexpr double kLine = 22, kRow = 15;
  std::string out;
  double y = kTop + 8;
  for (const Series& series : chart.series) {
    if (series.faint) continue;
    out += fmt::format(
        "<g class=\"{}{}\"><path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" fill=\"none\" "
        "stroke-width=\"2\"/></g>",
        color_class(series.run), series.dashed ? " dash" : "", kLeft + 8, y, kLeft + 8 + kLine, y);
    out += svg_text(kLeft + 14 + kLine, y + 4, series.name);
    y += kRow;
  }
  return out;
}

std::string tick_text(const std::function<std::string(double)>& text, double value) {
  return text ? text(value) : short_number(value);
}

std::string frame(const LineChart& chart, const Axis& x, const Axis& y) {
  std::string out = svg_text(0, 14, chart.title, "start", "title");
  if (y.scale == Scale::kLog)
    out += svg_text(kWidth - kRight, 14, label_text(chart.y_label, y.scale), "end", "label");
  for (const double tick : ticks(y.low, y.high, y.scale)) {
    const double at = y.place(tick);
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>",
                       x.from, at, x.to, at);
    out += svg_text(x.from - 6, at + 4, tick_text(chart.y_text, tick), "end");
  }
  double last = -1e9;
  for (const double tick : ticks(x.low, x.high, x.scale)) {
    const double at = x.place(tick);
    const std::string text = tick_text(chart.x_text, tick);
    out += fmt::format("<line class=\"tick\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", at,
                       y.from, at, y.from + 4);
    const double half = 4.0 * static_cast<double>(text.size());
    if (at - half < last + 4) continue;  // there is no space for the number
    last = at + half;
    out += svg_text(std::min(at, kWidth - half), y.from + 18, text, "middle");
  }
  out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>", x.from,
                     y.from, x.to, y.from);
  out += svg_text((x.from + x.to) / 2, kHeight - 6, label_text(chart.x_label, x.scale), "middle", "label");
  return out;
}

bool shows(const LineChart& chart, const std::pair<double, double>& point) {
  return Axis{chart.x_scale}.shows(point.first) && Axis{chart.y_scale}.shows(point.second);
}

// Appends the vertical values that the axis must show to `heights`.
void add_heights(const LineChart& chart, const Series& series, std::vector<double>& heights) {
  constexpr double kCutOff = 0.02;  // share of a faint series that is ignored at either end
  std::vector<double> own;
  for (const auto& point : series.points) {
    if (shows(chart, point)) own.push_back(point.second);
  }
  std::sort(own.begin(), own.end());
  const auto cut = series.faint ? static_cast<ptrdiff_t>(kCutOff * static_cast<double>(own.size())) : 0;
  heights.insert(heights.end(), own.begin() + cut, own.end() - cut);
}

std::string path_of(const LineChart& chart, const Series& series, const Axis& x, const Axis& y) {
  std::string path, dots;
  size_t points = 0;
  std::pair<double, double> last;
  const auto dot = [&dots](const std::pair<double, double>& at) {
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", at.first, at.second);
  };
  for (const auto& point : series.points) {
    if (!shows(chart, point)) continue;
    last = {x.place(point.first), y.place(point.second)};
    if (series.faint) last.second = std::clamp(last.second, y.to, y.from);
    path += fmt::format("{}{:.1f} {:.1f}", points++ == 0 ? "M" : "L", last.first, last.second);
    if (series.marks) dot(last);
  }
  if (points == 0) return "";
  if (points == 1 && !series.marks) dot(last);  // a line with one point would be invisible
  return fmt::format("<g class=\"series {}{}{}\" data-run=\"{}\"{}><path d=\"{}\"/>{}</g>",
                     color_class(series.run), series.dashed ? " dash" : "", series.faint ? " raw" : "",
                     series.run, series.faint ? "" : fmt::format(" data-name=\"{}\"", escaped(series.name)),
                     path, dots);
}

}  // namespace

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 999.5e6) return fmt::format("{:.3g}G", value / 1e9);
  if (size >= 999.5e3) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 999.5) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

std::vector<double> ticks(double low, double high, Scale scale) {
  std::vector<double> out;
  const double slack = 1e-9 * std::abs(high - low);
  if (scale == Scale::kLinear) {
    if (!(high > low)) return {low};
    const double step = nice_step(high - low);
    for (double i = std::ceil(low / step - 1e-9); i * step <= high + slack; ++i)
      out.push_back(i * step + 0.0);  // no -0
    return out;
  }
  const double decades = std::log10(high / low);
  for (double power = std::floor(std::log10(low)); power <= std::log10(high); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, power);
      if (decades > kFewDecades && factor != 1.0) continue;
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) out.push_back(tick);
    }
  }
  return out;
}

bool has_points(const LineChart& chart) {
  return std::any_of(chart.series.begin(), chart.series.end(), [&](const Series& series) {
    return std::any_of(series.points.begin(), series.points.end(),
                       [&](const auto& point) { return shows(chart, point); });
  });
}

std::vector<std::string> invisible_series(const LineChart& chart) {
  std::vector<std::string> names;
  for (const Series& series : chart.series) {
    const bool visible = std::any_of(series.points.begin(), series.points.end(),
                                     [&](const auto& point) { return shows(chart, point); });
    if (!series.faint && !series.points.empty() && !visible) names.push_back(series.name);
  }
  return names;
}

std::string svg_of(const LineChart& chart) {
  std::vector<double> xs, ys;
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) {
      if (shows(chart, point)) xs.push_back(point.first);
    }
    add_heights(chart, series, ys);
  }
  const Axis x = axis_of(xs, chart.x_scale, kLeft, kWidth - kRight);
  Axis y = axis_of(ys, chart.y_scale, kHeight - kBottom, kTop);
  add_room_below(y);
  std::string out = fmt::format(
      "<svg class=\"lines\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\" data-x=\"{}\" "
      "data-y=\"{}\" data-x-label=\"{}\" data-y-label=\"{}\">",
      kWidth, kHeight, escaped(chart.title), x.text(), y.text(), escaped(chart.x_label),
      escaped(chart.y_label));
  out += frame(chart, x, y);
  for (const bool faint : {true, false}) {
    for (const Series& series : chart.series) {
      if (series.faint == faint) out += path_of(chart, series, x, y);
    }
  }
  if (chart.legend) out += legend(chart);
  return out + "</svg>";
}

}  // namespace starling
