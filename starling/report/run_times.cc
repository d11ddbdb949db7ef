#include "starling/report/run_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/json_number.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kRunDir = "RUN_DIR";

// Returns a number from 0 to 10^12, whose sums are finite. Returns 0 for one that is missing or below 0.
double seconds_of(const Json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number()) return 0;
  const double value = it->get<double>();
  return value > 0 ? std::min(value, 1e12) : 0;
}

// Returns an integer from 0 to 10^9, so that the product of two fits. Errors: Json::exception if the value is
// no integer.
int64_t whole_number(const Json& json, const char* key, int64_t otherwise = 0) {
  const auto it = json.find(key);
  return it == json.end() ? otherwise : std::clamp<int64_t>(integer_of<int64_t>(*it), 0, 1'000'000'000);
}

std::map<std::string, double> named_numbers(const Json& json, const char* key) {
  std::map<std::string, double> out;
  const auto it = json.find(key);
  if (it == json.end() || !it->is_object()) return out;
  for (const auto& [name, value] : it->items()) {
    if (value.is_number()) out[name] = std::clamp(value.get<double>(), -1e12, 1e12);
  }
  return out;
}

// Returns the name of a host, or "" for a text that is none. A line break could forge a line of the answer.
std::string host_name_of(const std::string& text) {
  const auto control = [](unsigned char c) { return c < ' ' || c == 127; };
  return std::any_of(text.begin(), text.end(), control) ? "" : text;
}

RunStarted run_event_of(const Json& json) {
  RunStarted e;
  e.model = json.value("model", "");
  e.data = json.value("data", "");
  e.ranks = std::max<int64_t>(1, whole_number(json, "ranks", 1));
  e.threads = std::max<int64_t>(1, whole_number(json, "threads", 1));
  e.local_processes = std::max<int64_t>(1, whole_number(json, "local_processes", 1));
  e.local_cores = whole_number(json, "local_cores");
  e.global_batch = whole_number(json, "global_batch");
  e.total_steps = whole_number(json, "total_steps");
  e.first_step = whole_number(json, "first_step");
  e.params = whole_number(json, "params");
  e.startup_s = seconds_of(json, "startup_s");
  if (const auto hosts = json.find("hosts"); hosts != json.end() && hosts->is_array()) {
    e.hosts.reserve(hosts->size());
    for (const Json& host : *hosts) e.hosts.push_back(host_name_of(host.get<std::string>()));
  }
  return e;
}

std::vector<RankTimes> rank_times_of(const Json& json) {
  std::vector<RankTimes> out;
  const auto it = json.find("rank_times");
  if (it == json.end() || !it->is_array()) return out;
  out.reserve(it->size());
  for (const Json& one : *it)
    out.push_back({whole_number(one, "rank"), seconds_of(one, "compute_s"), seconds_of(one, "exposed_comm_s"),
                   seconds_of(one, "data_wait_s")});
  std::ranges::stable_sort(out, {}, &RankTimes::rank);
  const auto again = [](const auto& a, const auto& b) { return a.rank == b.rank; };
  out.erase(std::unique(out.begin(), out.end(), again), out.end());
  return out;
}

// A longer line cannot be an event, and is counted without being held in memory.
constexpr size_t kLongestLine = size_t{16} << 20;

void add_lines(RunTimes& times, std::istream& in) {
  std::string line;
  bool too_long = false;
  const auto end_line = [&] {
    if (too_long)
      ++times.bad_lines;
    else
      times.add_line(line);
    line.clear();
    too_long = false;
  };
  std::vector<char> buffer(size_t{64} << 10);
  while (in.read(buffer.data(), std::ssize(buffer)), in.gcount() > 0) {
    std::string_view rest(buffer.data(), static_cast<size_t>(in.gcount()));
    for (size_t end = rest.find('\n');; end = rest.find('\n')) {
      const std::string_view part = rest.substr(0, end);
      too_long = too_long || line.size() + part.size() > kLongestLine;
      if (too_long)
        line = std::string();  // frees its memory
      else
        line += part;
      if (end == std::string_view::npos) break;
      end_line();
      rest.remove_prefix(end + 1);
    }
  }
  end_line();
}

// Returns what a folder is called in a message if it holds no events.
std::string why_no_run(const fs::path& folder) {
  if (fs::exists(folder / "manifest.json"))
    return fmt::format("{} is a checkpoint; give the folder of its run", folder.string());
  if (fs::exists(folder / "index.html"))
    return fmt::format("{} holds the report of several runs; give the folder of one of them, for example {}",
                       folder.string(), (folder / "01-…").string());
  return fmt::format(
      "{} is not the folder of a run: it has no events.jsonl. Give a folder that `starling "
      "train` or Run::fit has written, for example one in runs/",
      folder.string());
}

}  // namespace

// One event: its name, its time (0: unknown) and its fields.
struct RunTimes::Reading {
  std::string name;
  double time = 0;
  const Json& json;
};

void RunTimes::add_line(const std::string& line) {
  if (line.empty() || read(line)) return;
  ++bad_lines;
  // A resumed run appends its first event to a line that a killed start has not finished.
  const size_t last = line.rfind("{\"event\":");
  if (last != std::string::npos && last > 0) read(line.substr(last));
}

bool RunTimes::read(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("event")) return false;
  try {
    add_event({json["event"].get<std::string>(), seconds_of(json, "time"), json});
    return true;
  } catch (const Json::exception&) {
    return false;  // a field has another type than an event of this name has
  }
}

void RunTimes::add_event(const Reading& event) {
  if (event.name == "run") return begin(event);
  if (closed_) return;  // for example a message before the run begins
  StartTimes& start = starts.back();
  last_ = std::max(last_, event.time);
  if (event.name == "step") {
    add_step(event);
  } else if (event.name == "eval") {
    const double took = seconds_of(event.json, "seconds");
    start.evaluation_s += took;
    start.evaluation_known = start.evaluation_known && took > 0;
    start.test_samples = whole_number(event.json, "samples");
  } else if (event.name == "lost") {
    start.recovery_s += seconds_of(event.json, "seconds");
  } else if (event.name == "checkpoint") {
    // A start without a result does not say whether earlier versions wrote it, unless a step says so.
    start.checkpoint_known = start.checkpoint_known && start.checkpoint_s > 0;
  } else if (event.name == "result") {
    end(event);
  }
}

// A rank that takes the lead over repeats the event of the same start.
void RunTimes::begin(const Reading& event) {
  const std::string run_id = event.json.value("run_id", "");
  RunStarted started = run_event_of(event.json);  // throws before anything changes
  if (!closed_ && !run_id.empty() && starts.back().run_id == run_id) {
    last_ = std::max(last_, event.time);
    return;
  }
  close();
  starts.emplace_back();
  starts.back().started = std::move(started);
  starts.back().run_id = run_id;
  began_ = last_ = event.time;
  step_s_ = 0;
  closed_ = false;
}

void RunTimes::add_step(const Reading& event) {
  StartTimes& start = starts.back();
  ++start.steps;
  step_s_ += seconds_of(event.json, "step_s");
  start.compute_s += seconds_of(event.json, "compute_s");
  start.data_wait_s += seconds_of(event.json, "data_wait_s");
  start.exposed_comm_s += seconds_of(event.json, "exposed_comm_s");
  const double saving = seconds_of(event.json, "checkpoint_s");
  start.checkpoint_s += saving;
  if (saving > 0) start.checkpoint_known = true;
}

// The result is the sum of all steps, also of those whose events were dropped.
void RunTimes::end(const Reading& event) {
  StartTimes& start = starts.back();
  const Json& json = event.json;
  std::vector<RankTimes> ranks = rank_times_of(json);
  const int64_t steps = whole_number(json, "steps");
  start.steps = std::max<int64_t>(start.steps, steps - whole_number(json, "first_step"));
  start.rank_times = std::move(ranks);
  start.ended = true;
  start.interrupted = json.value("interrupted", false);
  start.compute_s = seconds_of(json, "compute_s");
  start.data_wait_s = seconds_of(json, "data_wait_s");
  start.exposed_comm_s = seconds_of(json, "exposed_comm_s");
  start.exchange_s = named_numbers(json, "exchange_s");
  start.statistics = named_numbers(json, "strategy");
  if (json.contains("evaluation_s")) {
    start.evaluation_s = seconds_of(json, "evaluation_s");
    start.evaluation_known = true;
  }
  start.checkpoint_known = start.checkpoint_known || json.contains("checkpoint_s");
  if (json.contains("checkpoint_s")) start.checkpoint_s = seconds_of(json, "checkpoint_s");
  start.wall_s = seconds_of(json, "wall_s");
  if (began_ > 0 && event.time > 0) start.ending_s = std::max(0.0, event.time - began_ - start.wall_s);
  start.wall_s += start.ending_s + start.started.startup_s;
  closed_ = true;
}

void RunTimes::close() {
  if (closed_) return;
  StartTimes& start = starts.back();
  // Without times, only the steps and what lies between them are known.
  const double between = start.evaluation_s + start.checkpoint_s;
  start.wall_s = start.started.startup_s + (began_ > 0 ? std::max(0.0, last_ - began_) : step_s_ + between);
  closed_ = true;
}

void RunTimes::finish() {
  close();
}

RunTimes read_run_times(const std::string& folder) {
  if (!fs::exists(folder))
    throw ConfigError(kRunDir, fmt::format("there is no folder {}; give the folder of a run", folder));
  if (!fs::is_directory(folder))
    throw ConfigError(kRunDir, fmt::format("{} is no folder; give the folder of a run", folder));
  const fs::path file = fs::path(folder) / "events.jsonl";
  if (!fs::exists(file)) throw ConfigError(kRunDir, why_no_run(folder));
  if (!fs::is_regular_file(file))
    throw ConfigError(kRunDir, fmt::format("{} is no regular file; give the folder of a run", file.string()));
  std::ifstream in(file, std::ios::binary);
  RunTimes times;
  add_lines(times, in);
  if (in.bad() || !in.eof())
    throw ConfigError(kRunDir, fmt::format("{} cannot be read; check its permissions", file.string()));
  times.finish();
  if (times.starts.empty())
    throw ConfigError(
        kRunDir,
        fmt::format("{} has no event of a run that began. The run ended before its first step, or it "
                    "is a program's own loop, which reports no steps. log/rank-0.log may say more",
                    file.string()));
  return times;
}

}  // namespace starling
