#include "starling/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr const char* kNone = "–";

std::string times(double factor) {
  return factor < 0 ? kNone : fmt::format("{:.2f} ×", factor);
}

std::string accuracy(double share) {
  return share < 0 ? kNone : fmt::format("{:.2f} %", 100 * share);
}

std::string count(double value) {
  return value < 0 ? kNone : with_thousands(std::llround(value));
}

}  // namespace

std::string target_text(const Target& target) {
  return target.accuracy >= 0 ? "accuracy " + percent(target.accuracy)
                              : fmt::format("loss {:g}", target.loss);
}

Table table_of(const Comparison& comparison) {
  const std::vector<Compared> runs = compared(comparison);
  const auto has = [&](auto member) {
    return std::any_of(runs.begin(), runs.end(), [&](const Compared& r) { return r.*member >= 0; });
  };
  const bool target = comparison.target.any(), tested = has(&Compared::test_accuracy);
  Table table;
  table.head = {"run", "ranks"};
  if (target) table.head.insert(table.head.end(), {"to target", "samples", "sooner by"});
  table.head.push_back("loss");
  if (tested) table.head.push_back("accuracy");
  table.head.insert(table.head.end(), {"samples/s", "speed-up", "bytes", "balance", "waiting"});
  for (const Compared& r : runs) {
    if (!r.error.empty()) {
      table.rows.push_back({r.name, "failed: " + r.error});
      continue;
    }
    std::vector<std::string> row = {r.name, std::to_string(r.ranks)};
    if (target) {
      row.push_back(r.seconds_to_target < 0 ? "never" : duration(r.seconds_to_target));
      row.push_back(count(r.samples_to_target));
      row.push_back(times(r.target_speed_up));
    }
    row.push_back(significant(r.train_loss));
    if (tested) row.push_back(accuracy(r.test_accuracy));
    row.push_back(count(r.samples_per_s));
    row.push_back(times(r.speed_up));
    row.push_back(bytes_text(static_cast<uint64_t>(r.bytes)));
    row.push_back(r.bytes_balance < 0 ? kNone : fmt::format("{:.2f}", r.bytes_balance));
    row.push_back(percent(r.exposed_share));
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace starling
