#include "starling/report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/report/run_names.h"
#include "starling/report/table.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

Compared compared(const RunRecord& run, const RunRecord& first, const Target& target) {
  Compared out;
  out.name = run.name;
  out.error = run.finished ? "" : run.error.empty() ? "the run gave no result" : run.error;
  if (!run.finished) return out;
  const RunResult& result = run.result;
  out.ranks = result.ranks;
  out.train_loss = result.train_loss;
  out.test_loss = result.test_loss;
  out.test_accuracy = result.test_accuracy;
  out.samples_per_s = result.samples_per_s;
  out.bytes = run.statistic("step_bytes", 0);
  out.bytes_balance = run.statistic("bytes_balance", -1);
  out.seconds = run.step_seconds();
  if (out.seconds > 0) out.exposed_share = result.exposed_comm_s / out.seconds;
  if (first.finished && first.result.samples_per_s > 0)
    out.speed_up = out.samples_per_s / first.result.samples_per_s;
  if (!target.any()) return out;
  const std::optional<RunPoint> at = reached(run, target), at_first = reached(first, target);
  if (!at) return out;
  out.seconds_to_target = at->seconds;
  out.samples_to_target = at->samples;
  if (at_first && at->seconds > 0) out.target_speed_up = at_first->seconds / at->seconds;
  return out;
}

}  // namespace

std::vector<Compared> compared(const Comparison& comparison) {
  std::vector<Compared> all;
  for (const RunRecord& run : comparison.runs)
    all.push_back(compared(run, comparison.runs.front(), comparison.target));
  const std::vector<std::string> names = names_of(comparison);
  for (size_t i = 0; i < all.size(); ++i) all[i].short_name = names[i];
  return all;
}

std::vector<std::string> names_of(const Comparison& comparison) {
  std::vector<NamedRun> runs;
  for (const RunRecord& run : comparison.runs) runs.push_back({run.name, run.ranks()});
  return short_names(runs);
}

std::string to_text(const Comparison& comparison) {
  const Table table = table_of(comparison);
  std::vector<int> widths;
  for (const std::string& head : table.head) widths.push_back(display_width(head));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size() && row.size() == table.head.size(); ++i)
      widths[i] = std::max(widths[i], display_width(row[i]));
  }
  for (const auto& row : table.rows) widths[0] = std::max(widths[0], display_width(row[0]));
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string gap(std::max(0, i < widths.size() ? widths[i] - display_width(cells[i]) : 0), ' ');
      text += (i == 0 ? "" : "  ") +
              (i == 0 || cells.size() != table.head.size() ? cells[i] + gap : gap + cells[i]);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  line(table.head);
  for (const auto& row : table.rows) line(row);
  return out;
}

std::string to_json(const Compared& run) {
  nlohmann::ordered_json out = {{"event", "compared"}, {"run", run.name}, {"name", run.short_name}};
  if (!run.error.empty()) {
    out["error"] = run.error;
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const auto meaningful = [&out](const char* key, double value) {
    if (value >= 0) out[key] = value;
  };
  out["ranks"] = run.ranks;
  meaningful("seconds_to_target", run.seconds_to_target);
  meaningful("samples_to_target", run.samples_to_target);
  meaningful("target_speed_up", run.target_speed_up);
  out["train_loss"] = run.train_loss;
  meaningful("test_loss", run.test_loss);
  meaningful("test_accuracy", run.test_accuracy);
  out["samples_per_s"] = run.samples_per_s;
  meaningful("speed_up", run.speed_up);
  out["bytes"] = run.bytes;
  meaningful("bytes_balance", run.bytes_balance);
  out["exposed_share"] = run.exposed_share;
  out["seconds"] = run.seconds;
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace starling
