#include "starling/report/timeline_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/report/line_chart.h"
#include "starling/report/markup.h"

namespace starling {
namespace {

constexpr double kWidth = 900, kLeft = 60, kRight = 10, kRow = 30, kHead = 26;

double last_end(const std::vector<TimedAction>& actions) {
  double end = 0;
  for (const TimedAction& a : actions) end = std::max(end, a.end);
  return end;
}

// Returns the block of one forward or backward. A block that is wide enough shows the number of its
// micro-batch.
std::string block(const TimedAction& timed, double y, double scale) {
  const bool forward = timed.action.kind == ActionKind::kForward;
  if (!forward && timed.action.kind != ActionKind::kBackward) return "";
  const double x = kLeft + timed.begin * scale, width = std::max(0.5, (timed.end - timed.begin) * scale - 1);
  std::string out = fmt::format(
      "<rect class=\"{}{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"2\">"
      "<title>{} {} of micro-batch {}: {:.2f} to {:.2f} ms</title></rect>",
      forward ? "c1" : "c2", timed.action.chunk % 2 == 1 ? " faint" : "", x, y, width, kRow - 6,
      fmt::format("rank {}", timed.rank), forward ? "forward" : "backward", timed.action.micro_batch,
      timed.begin * 1e3, timed.end * 1e3);
  if (width > 13)
    out += svg_text(x + width / 2, y + 17, std::to_string(timed.action.micro_batch), "middle", "inside");
  return out;
}

std::string panel(const std::string& name, const std::string& title, const std::vector<TimedAction>& actions,
                  int ranks, double top, double scale) {
  std::string out =
      fmt::format("<g data-name=\"{}\">", name) + svg_text(0, top + 14, title, "start", "title");
  for (int r = 0; r < ranks; ++r) {
    const double y = top + kHead + kRow * r;
    out += svg_text(0, y + 17, fmt::format("rank {}", r));
    out += fmt::format("<rect class=\"idle\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"/>",
                       kLeft, y, last_end(actions) * scale, kRow - 6);
    for (const TimedAction& timed : actions) {
      if (timed.rank == r) out += block(timed, y, scale);
    }
  }
  return out + "</g>";
}

}  // namespace

std::string svg_of(const StepTimeline& measured) {
  const SimulatedStep planned = planned_step(measured);
  const double end = std::max(last_end(measured.actions), planned.makespan);
  const double scale = (kWidth - kLeft - kRight) / end;
  if (!std::isfinite(scale)) return "";  // the step took no time
  const double height_of_panel = kHead + kRow * measured.ranks + 10, bottom = 2 * height_of_panel;
  std::string out = fmt::format(
      "<svg class=\"timeline\" viewBox=\"0 0 {:g} {:.0f}\" role=\"img\" aria-label=\"{}: planned and "
      "measured\">",
      kWidth, bottom + 36, escaped(measured.schedule));
  const auto title = [](const char* what, double idle) {
    return fmt::format("{}: idle {:.1f} %", what, 100 * idle);
  };
  out += panel("planned", title("Planned, with the measured mean times of each stage", planned.bubble),
               planned.timeline, measured.ranks, 0, scale);
  out += panel("measured", title("Measured, the last step", idle_share(measured)), measured.actions,
               measured.ranks, height_of_panel, scale);
  for (const double tick : ticks(0, end * 1e3, Scale::kLinear)) {
    const double x = kLeft + tick * 1e-3 * scale;
    out += fmt::format("<line class=\"tick\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>",
                       x, bottom - 6, bottom);
    out += svg_text(x, bottom + 14, short_number(tick), x > kWidth - 20 ? "end" : "middle");
  }
  return out + svg_text((kLeft + kWidth) / 2, bottom + 31, "ms since the step began", "middle", "label") +
         "</svg>";
}

}  // namespace starling
