#include "starling/telemetry/progress_line.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

struct Field {
  std::string text;
  Color color = Color::kPlain;
  int keep = 0;  // a line without enough columns first omits fields with small values
};

// Returns the share of the step in which the rank waited for other ranks, for servers or for data.
double waiting_share(const StepDone& step) {
  return step.step_s > 0 ? (step.exposed_comm_s + step.data_wait_s) / step.step_s : 0;
}

std::vector<Field> fields_of(const StepDone& e, const ProgressScale& scale) {
  std::vector<Field> fields;
  const bool bounded = scale.total_steps > 0;
  fields.push_back({bounded
                        ? fmt::format("step {}/{}", with_thousands(e.step), with_thousands(scale.total_steps))
                        : fmt::format("step {}", with_thousands(e.step)),
                    Color::kBold, 100});
  if (bounded) {
    const double share = static_cast<double>(e.step) / static_cast<double>(scale.total_steps);
    fields.push_back({fmt::format("{} %", static_cast<int>(100 * share)), Color::kDim, 5});
  }
  fields.push_back({fmt::format("epoch {:.2f}", e.epoch), Color::kPlain, 3});
  fields.push_back({"loss " + significant(e.loss), std::isfinite(e.loss) ? Color::kCyan : Color::kRed, 99});
  if (scale.verbose) fields.push_back({fmt::format("lr {:.3g}", e.lr), Color::kPlain, 2});
  fields.push_back({significant(e.samples_per_s) + " samples/s", Color::kPlain, 7});
  const double waiting = waiting_share(e);
  const bool for_processes = scale.ranks > 1 || e.exposed_comm_s > 0;
  constexpr double kLeast = 0.0005;  // of one rank that waits for data only; less is shown as 0.0 %
  if (for_processes || waiting >= kLeast)
    fields.push_back({(for_processes ? "waiting " : "waiting for data ") + percent(waiting),
                      waiting > 0.25 ? Color::kYellow : Color::kPlain, 6});
  if (e.slowest_rank >= 0 && scale.ranks > 1) {
    fields.push_back({fmt::format("slowest rank {}", e.slowest_rank), Color::kPlain, 4});
  }
  if (scale.verbose) {
    fields.push_back(
        {fmt::format("[{:.1f} ms: compute {:.1f}, exposed comm {:.1f}, data {:.1f}]", 1e3 * e.step_s,
                     1e3 * e.compute_s, 1e3 * e.exposed_comm_s, 1e3 * e.data_wait_s),
         Color::kDim, 1});
  }
  if (bounded) fields.push_back({"ETA " + duration(e.eta_s), Color::kGreen, 8});
  return fields;
}

constexpr int kGap = 2;

int width_of(const std::vector<Field>& fields) {
  int width = -kGap;
  for (const Field& field : fields) width += display_width(field.text) + kGap;
  return width;
}

}  // namespace

std::string progress_line(const StepDone& step, const ProgressScale& scale, int columns) {
  std::vector<Field> fields = fields_of(step, scale);
  while (columns > 0 && fields.size() > 2 && width_of(fields) > columns) {
    size_t least = 0;
    for (size_t i = 1; i < fields.size(); ++i) {
      if (fields[i].keep < fields[least].keep) least = i;
    }
    fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(least));
  }
  std::string line;
  int left = columns > 0 ? columns : width_of(fields);
  for (const Field& field : fields) {
    if (!line.empty()) {
      if (left <= kGap) break;
      line += std::string(kGap, ' ');
      left -= kGap;
    }
    const std::string_view text = cut(field.text, left);
    line += paint(scale.color, field.color, text);
    left -= display_width(text);
  }
  return line;
}

}  // namespace starling
