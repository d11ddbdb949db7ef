#include "starling/telemetry/to_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace starling {
namespace {

using Json = nlohmann::ordered_json;

void fill(Json& out, const RunStarted& e) {
  out["run_dir"] = e.run_dir;
  out["model"] = e.model;
  out["data"] = e.data;
  out["ranks"] = e.ranks;
  out["threads"] = e.threads;
  out["local_processes"] = e.local_processes;
  if (e.local_cores > 0) out["local_cores"] = e.local_cores;
  out["global_batch"] = e.global_batch;
  out["total_steps"] = e.total_steps;
  out["first_step"] = e.first_step;
  out["params"] = e.params;
  out["choices"] = e.choices;
  if (!e.hosts.empty()) out["hosts"] = e.hosts;
  if (e.startup_s > 0) out["startup_s"] = e.startup_s;
}

void fill(Json& out, const StepDone& e) {
  out["step"] = e.step;
  out["epoch"] = e.epoch;
  out["loss"] = e.loss;
  out["lr"] = e.lr;
  out["samples_per_s"] = e.samples_per_s;
  out["step_s"] = e.step_s;
  out["compute_s"] = e.compute_s;
  out["exposed_comm_s"] = e.exposed_comm_s;
  out["data_wait_s"] = e.data_wait_s;
  if (e.slowest_rank >= 0) out["slowest_rank"] = e.slowest_rank;
  out["eta_s"] = e.eta_s;
  if (e.checkpoint_s > 0) out["checkpoint_s"] = e.checkpoint_s;
}

void fill(Json& out, const EvalDone& e) {
  out["step"] = e.step;
  out["loss"] = e.loss;
  if (e.accuracy >= 0) out["accuracy"] = e.accuracy;
  out["samples"] = e.samples;
  if (!e.metrics.empty()) out["metrics"] = e.metrics;
  if (e.seconds > 0) out["seconds"] = e.seconds;
}

void fill(Json& out, const CheckpointDone& e) {
  out["step"] = e.step;
  out["path"] = e.path;
  out["seconds"] = e.seconds;
  if (!e.error.empty()) out["error"] = e.error;
}

void fill(Json& out, const Message& e) {
  out["severity"] = name_of(e.severity);
  if (e.rank >= 0) out["rank"] = e.rank;
  out["text"] = e.text;
}

void fill(Json& out, const RunResult& e) {
  out["model"] = e.model;
  out["steps"] = e.steps;
  if (e.first_step > 0) out["first_step"] = e.first_step;
  out["ranks"] = e.ranks;
  out["params"] = e.params;
  out["samples_per_s"] = e.samples_per_s;
  if (!std::isnan(e.train_loss)) out["train_loss"] = e.train_loss;
  if (e.test_loss != -1) out["test_loss"] = e.test_loss;
  if (e.test_accuracy != -1) out["test_accuracy"] = e.test_accuracy;
  if (!e.test_metrics.empty()) out["test_metrics"] = e.test_metrics;
  out["wall_s"] = e.wall_s;
  out["compute_s"] = e.compute_s;
  out["exposed_comm_s"] = e.exposed_comm_s;
  out["data_wait_s"] = e.data_wait_s;
  out["evaluation_s"] = e.evaluation_s;
  out["checkpoint_s"] = e.checkpoint_s;
  if (!e.exchange_s.empty()) out["exchange_s"] = e.exchange_s;
  for (const RankTimes& times : e.rank_times) {
    out["rank_times"].push_back({{"rank", times.rank},
                                 {"compute_s", times.compute_s},
                                 {"exposed_comm_s", times.exposed_comm_s},
                                 {"data_wait_s", times.data_wait_s}});
  }
  if (!e.share.empty()) out["share"] = e.share;
  out["bytes_sent"] = e.bytes_sent;
  out["peak_rss_mb"] = e.peak_rss_mb;
  out["interrupted"] = e.interrupted;
  if (e.stopped) out["stopped"] = true;
  if (!e.resume.command.empty()) out["resume"] = e.resume.command;
  if (!e.lost_ranks.empty()) {
    out["lost_ranks"] = e.lost_ranks;
    out["recovery_s"] = e.recovery_s;
  }
  if (e.exchange.empty()) return;
  Json strategy = {{"exchange", e.exchange}};
  for (const auto& [name, number] : e.strategy) strategy[name] = number;
  out["strategy"] = std::move(strategy);
}

void fill(Json& out, const RanksLost& e) {
  out["step"] = e.step;
  out["ranks"] = e.ranks;
  out["left"] = e.left;
  out["seconds"] = e.seconds;
  out["text"] = text_of(e);
}

}  // namespace

std::string text_of(const RanksLost& lost) {
  const bool one = lost.ranks.size() == 1;
  return fmt::format("rank{} {} {} lost at step {}; {} rank{} after {:.1f} s", one ? "" : "s",
                     fmt::join(lost.ranks, ", "), one ? "was" : "were", lost.step, lost.left,
                     lost.left == 1 ? " continues" : "s continue", lost.seconds);
}

const char* name_of(const Event& event) {
  static constexpr const char* kNames[] = {"run", "step", "eval", "checkpoint", "message", "result", "lost"};
  static_assert(std::size(kNames) == std::variant_size_v<Event>);
  return kNames[event.index()];
}

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return "debug";
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "info";
}

std::string to_json(const Event& event, const EventStamp& stamp) {
  Json out;
  out["event"] = name_of(event);
  if (stamp.time > 0) out["time"] = stamp.time;
  if (!stamp.run_id.empty()) out["run_id"] = stamp.run_id;
  std::visit([&out](const auto& e) { fill(out, e); }, event);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace starling
