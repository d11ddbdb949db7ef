#include "starling/report/run_record.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace starling {
namespace {

using Json = nlohmann::json;

// A number that was not finite is null in JSON.
double number(const Json& json, const char* key, double otherwise = 0) {
  const auto it = json.find(key);
  if (it == json.end()) return otherwise;
  return it->is_number() ? it->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

int64_t integer(const Json& json, const char* key) {
  return json.value(key, int64_t{0});
}

RunStarted started_of(const Json& json) {
  RunStarted e;
  e.run_dir = json.value("run_dir", "");
  e.model = json.value("model", "");
  e.data = json.value("data", "");
  e.ranks = integer(json, "ranks");
  e.threads = integer(json, "threads");
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
  e.train_loss = number(json, "train_loss");
  e.test_loss = number(json, "test_loss", -1);
  e.test_accuracy = number(json, "test_accuracy", -1);
  e.wall_s = number(json, "wall_s");
  e.compute_s = number(json, "compute_s");
  e.exposed_comm_s = number(json, "exposed_comm_s");
  e.data_wait_s = number(json, "data_wait_s");
  e.bytes_sent = json.value("bytes_sent", uint64_t{0});
  for (const Json& mb : json.value("peak_rss_mb", Json::array())) e.peak_rss_mb.push_back(mb.get<double>());
  e.interrupted = json.value("interrupted", false);
  const Json strategy = json.value("strategy", Json::object());
  for (const auto& [key, value] : strategy.items()) {
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
  const std::string event = json.value("event", "");
  if (event == "run") {
    started = started_of(json);
  } else if (event == "step") {
    RunPoint point;
    point.step = integer(json, "step");
    point.seconds = step_seconds() + number(json, "step_s");
    point.samples = static_cast<double>(point.step * started.global_batch);
    point.loss = number(json, "loss");
    steps.push_back(point);
  } else if (event == "eval") {
    RunPoint point = steps.empty() ? RunPoint{} : steps.back();
    point.loss = number(json, "loss");
    point.accuracy = number(json, "accuracy", -1);
    evaluations.push_back(point);
  } else if (event == "error") {
    error = json.value("message", "it failed");
  } else if (event == "result") {
    result = result_of(json);
    finished = true;
    finish();
  }
}

double RunRecord::told(const std::string& key, double otherwise) const {
  const auto it = result.strategy.find(key);
  return it == result.strategy.end() ? otherwise : it->second;
}

void RunRecord::finish() {
  if (steps.empty()) return;
  const double a_step = told("step_bytes", 0) / static_cast<double>(steps.size());
  for (auto* points : {&steps, &evaluations}) {
    for (RunPoint& point : *points)
      point.bytes = a_step * static_cast<double>(point.step - steps.front().step + 1);
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

std::vector<RunPoint> thinned(const std::vector<RunPoint>& points, size_t count) {
  const size_t bins = std::min(count, points.size());
  std::vector<RunPoint> out;
  for (size_t bin = 0; bin < bins; ++bin) {
    const size_t begin = bin * points.size() / bins, end = (bin + 1) * points.size() / bins;
    RunPoint point = points[end - 1];
    point.loss = std::accumulate(points.begin() + static_cast<ptrdiff_t>(begin),
                                 points.begin() + static_cast<ptrdiff_t>(end), 0.0,
                                 [](double sum, const RunPoint& p) { return sum + p.loss; }) /
                 static_cast<double>(end - begin);
    out.push_back(point);
  }
  return out;
}

}  // namespace starling
