#include "starling/report/run_record.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>

#include "starling/base/json_number.h"

namespace starling {
namespace {

using Json = nlohmann::json;

// Returns NaN for null: JSON has no other form for a number that is not finite.
double number(const Json& json, const char* key, double otherwise = 0) {
  const auto it = json.find(key);
  if (it == json.end()) return otherwise;
  return it->is_number() ? it->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

// Throws Json::exception if the value is no integer that fits.
int64_t integer(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() ? 0 : integer_of<int64_t>(*it);
}

RunStarted started_of(const Json& json) {
  RunStarted e;
  e.run_dir = json.value("run_dir", "");
  e.model = json.value("model", "");
  e.data = json.value("data", "");
  e.ranks = integer(json, "ranks");
  e.threads = integer(json, "threads");
  e.local_processes = integer(json, "local_processes");
  e.local_cores = integer(json, "local_cores");
  e.global_batch = integer(json, "global_batch");
  e.total_steps = integer(json, "total_steps");
  e.params = integer(json, "params");
  e.choices = json.value("choices", std::map<std::string, std::string>{});
  return e;
}

RunResult result_of(const Json& json) {
  RunResult e;
  e.model = json.value("model", "");
  e.steps = integer(json, "steps");
  e.ranks = integer(json, "ranks");
  e.params = integer(json, "params");
  e.samples_per_s = number(json, "samples_per_s");
  e.train_loss = number(json, "train_loss", std::numeric_limits<double>::quiet_NaN());
  e.test_loss = number(json, "test_loss", -1);
  e.test_accuracy = number(json, "test_accuracy", -1);
  e.wall_s = number(json, "wall_s");
  e.compute_s = number(json, "compute_s");
  e.exposed_comm_s = number(json, "exposed_comm_s");
  e.data_wait_s = number(json, "data_wait_s");
  e.bytes_sent = static_cast<uint64_t>(std::max<int64_t>(0, integer(json, "bytes_sent")));
  if (const auto it = json.find("peak_rss_mb"); it != json.end()) {
    for (const Json& mb : *it) e.peak_rss_mb.push_back(mb.get<double>());
  }
  e.interrupted = json.value("interrupted", false);
  // A reference, because a copy of a deeply nested value would overflow the stack.
  const auto strategy = json.find("strategy");
  if (strategy == json.end() || !strategy->is_object()) return e;
  for (const auto& [key, value] : strategy->items()) {
    if (value.is_number()) e.strategy[key] = value.get<double>();
    if (key == "exchange" && value.is_string()) e.exchange = value.get<std::string>();
  }
  return e;
}

}  // namespace

void RunRecord::add_line(const std::string& line) {
  if (line.empty() || line.front() != '{') return;
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  try {
    add_event(json.value("event", ""), json);
  } catch (const Json::exception&) {
    // A field has another type than an event of this name has, so the line is no event.
  }
}

void RunRecord::add_event(const std::string& event, const Json& json) {
  if (event == "run") {
    started = started_of(json);
  } else if (event == "step") {
    RunPoint point;
    point.step = integer(json, "step");
    point.seconds = step_seconds() + number(json, "step_s");
    point.samples = static_cast<double>(point.step) * static_cast<double>(started.global_batch);
    point.loss = number(json, "loss");
    steps.push_back(point);
  } else if (event == "eval") {
    RunPoint point = steps.empty() ? RunPoint{} : steps.back();
    point.loss = number(json, "loss");
    point.accuracy = number(json, "accuracy", -1);
    evaluations.push_back(point);
  } else if (event == "error") {
    error = json.value("message", "the run failed");
  } else if (event == "result") {
    result = result_of(json);
    finished = true;
    finish();
  }
}

double RunRecord::statistic(const std::string& key, double otherwise) const {
  const auto it = result.strategy.find(key);
  return it == result.strategy.end() ? otherwise : it->second;
}

int64_t RunRecord::ranks() const {
  if (!started.model.empty()) return started.ranks;
  return finished ? result.ranks : 0;
}

void RunRecord::finish() {
  if (steps.empty()) return;
  const double bytes_per_step = statistic("step_bytes", 0) / static_cast<double>(steps.size());
  for (auto* points : {&steps, &evaluations}) {
    for (RunPoint& point : *points)
      point.bytes =
          bytes_per_step * (static_cast<double>(point.step) - static_cast<double>(steps.front().step) + 1);
  }
}

std::optional<RunPoint> reached(const RunRecord& run, const Target& target) {
  if (target.accuracy >= 0) {
    for (const RunPoint& point : run.evaluations) {
      if (point.accuracy >= target.accuracy) return point;
    }
    return std::nullopt;
  }
  constexpr size_t kWindow = 20;
  std::deque<double> window;
  double sum = 0;
  for (const RunPoint& point : run.steps) {
    window.push_back(point.loss);
    sum += point.loss;
    if (window.size() > kWindow) {
      sum -= window.front();
      window.pop_front();
    }
    if (window.size() == kWindow && sum / static_cast<double>(kWindow) <= target.loss) return point;
  }
  return std::nullopt;
}

}  // namespace starling
