#include "starling/commands/bench_scaling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/commands/end_of_list.h"
#include "starling/commands/own_program.h"
#include "starling/run/message/dry_run.h"
#include "starling/spec/config.h"
#include "starling/spec/emulation.h"
#include "starling/spec/print.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

constexpr double kLinear = 0.9;  // share of K from which the scaling counts as linear
constexpr std::chrono::seconds kLongestRun{300};

struct Series {
  std::string name;
  std::string emulate;
  bool shared_memory = true;
};

std::string with_comma(const std::string& a, const std::string& b) {
  return a.empty() || b.empty() ? a + b : a + "," + b;
}

std::vector<Series> series_of(const RunSpec& spec, const ScalingSpec& scaling) {
  const std::string& own = spec.train.emulate;
  std::vector<Series> all = {{"alone", own, spec.comm.shared_memory}};
  const std::string linked = with_comma(own, scaling.link);
  all.push_back({"slow link", linked, false});
  if (!scaling.straggler.empty())
    all.push_back({"slow link, straggler", with_comma(linked, scaling.straggler), false});
  return all;
}

// Returns the emulation for this many ranks. It leaves out slow-rank=… of ranks that do not exist.
std::string for_ranks(const std::string& emulate, int64_t ranks) {
  std::string kept;
  for (size_t begin = 0; begin < emulate.size();) {
    const size_t comma = std::min(emulate.find(',', begin), emulate.size());
    const std::string part = emulate.substr(begin, comma - begin);
    const Emulation parsed = parse_emulation(part);
    if (parsed.slow_ranks.empty() || parsed.slow_ranks.front().rank < ranks) kept = with_comma(kept, part);
    begin = comma + 1;
  }
  return kept;
}

Config config_of(const RunSpec& spec, const ScalingSpec& scaling, const Series& series, int64_t ranks) {
  Config config;
  config.spec = spec;
  TrainSpec& train = config.spec.train;
  train.ranks = ranks;
  train.threads = 1;
  const double compute_s = scaling.compute_ms / 1e3 / (scaling.strong ? static_cast<double>(ranks) : 1.0);
  train.emulate = for_ranks(series.emulate, ranks);
  if (compute_s > 0)
    train.emulate = with_comma(fmt::format("compute={:.0f}us", compute_s * 1e6), train.emulate);
  train.global_batch = scaling.strong ? scaling.batch : scaling.batch * ranks;
  train.steps = scaling.steps;
  train.hash_every = 0;
  config.spec.comm.shared_memory = series.shared_memory;
  config.spec.run.resume = "never";
  return config;
}

ScalingPoint measure_point(const RunSpec& spec, const ScalingSpec& scaling, const Series& series,
                           int64_t ranks, const std::filesystem::path& folder) {
  Config config = config_of(spec, scaling, series, ranks);
  config.spec.run.dir = folder / "run";
  const std::string file = folder / "scaling.toml";
  std::ofstream(file) << config_to_toml(config);
  const std::string result = last_result_of({"train", "-c", file, "--json", "-q"}, kLongestRun);
  std::filesystem::remove_all(folder / "run");
  const nlohmann::json json = nlohmann::json::parse(result);
  const nlohmann::json& times = json.at("strategy");
  ScalingPoint point;
  point.series = series.name;
  point.emulate = config.spec.train.emulate;
  point.ranks = ranks;
  point.global_batch = config.spec.train.global_batch;
  if (!times.contains("step_s")) {  // nothing slows the ranks down, so no times are emulated
    const auto steps = json.at("steps").get<double>();
    point.emulated = false;
    point.samples_per_s = json.at("samples_per_s");
    point.step_s = static_cast<double>(point.global_batch) / point.samples_per_s;
    point.compute_s = json.at("compute_s").get<double>() / steps;
    point.exchange_s = json.at("exposed_comm_s").get<double>() / steps;
    return point;
  }
  point.step_s = times.at("step_s");
  point.samples_per_s = times.at("rank_steps_per_s").get<double>() * static_cast<double>(point.global_batch) /
                        static_cast<double>(ranks);
  point.compute_s = times.at("step_compute_s");
  point.waiting_s = times.at("step_waiting_s");
  point.exchange_s = times.at("step_exchange_s");
  point.overrun = times.at("emulation_overrun");
  return point;
}

double other_of(const ScalingPoint& p) {
  return std::max(0.0, p.step_s - p.compute_s - p.waiting_s - p.exchange_s);
}

std::string most_of(const ScalingPoint& p) {
  const double lost = std::max({p.exchange_s, p.waiting_s, other_of(p)});
  if (lost < 0.05 * p.step_s) return "computing";
  if (lost == p.exchange_s) return "exchange";
  return lost == p.waiting_s ? "waiting for the slowest" : "other";
}

// A folder that the destructor removes.
class ScalingFolder {
 public:
  ScalingFolder() : path_(make_private_folder("starling-scaling")) {}
  ~ScalingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScalingFolder(const ScalingFolder&) = delete;
  ScalingFolder& operator=(const ScalingFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

void judge_scaling(std::vector<ScalingPoint>& points) {
  for (size_t i = 0; i < points.size(); ++i) {
    ScalingPoint& p = points[i];
    p.speedup = p.samples_per_s / points.front().samples_per_s;
    const bool follows = i > 0 && points[i - 1].series == p.series;
    if (p.ranks == 1) {
      p.scaling = "one rank";
    } else if (follows && p.samples_per_s < points[i - 1].samples_per_s) {
      p.scaling = "negative";
    } else {
      p.scaling = p.speedup >= kLinear * static_cast<double>(p.ranks) ? "linear" : "sub-linear";
    }
    p.most = most_of(p);
  }
}

std::string scaling_heading() {
  return fmt::format("{:<22} {:>5} {:>10} {:>7} {:>5}  {:>8} {:>8} {:>9} {:>8}  {:<10} {}", "series", "ranks",
                     "samples/s", "speedup", "ideal", "step ms", "compute", "exchange", "waiting", "scaling",
                     "time goes to");
}

std::string to_text(const ScalingPoint& p) {
  std::string line =
      fmt::format("{:<22} {:>5} {:>10.0f} {:>6.2f}x {:>4}x  {:>8.1f} {:>8.1f} {:>9.1f} {:>8.1f}  {:<10} {}",
                  p.series, p.ranks, p.samples_per_s, p.speedup, p.ranks, p.step_s * 1e3, p.compute_s * 1e3,
                  p.exchange_s * 1e3, p.waiting_s * 1e3, p.scaling, p.most);
  if (p.overrun > 0.1)
    line += fmt::format(
        " (in {:.0f} % of the steps, the real computation took longer than the emulated one: use fewer ranks "
        "or a larger --compute)",
        100 * p.overrun);
  return line;
}

std::string to_json(const ScalingPoint& p) {
  return nlohmann::ordered_json{{"event", "scaling"},
                                {"series", p.series},
                                {"emulate", p.emulate},
                                {"emulated_compute", p.emulated},
                                {"ranks", p.ranks},
                                {"global_batch", p.global_batch},
                                {"samples_per_s", p.samples_per_s},
                                {"speedup", p.speedup},
                                {"step_s", p.step_s},
                                {"compute_s", p.compute_s},
                                {"exchange_s", p.exchange_s},
                                {"waiting_s", p.waiting_s},
                                {"other_s", other_of(p)},
                                {"emulation_overrun", p.overrun},
                                {"scaling", p.scaling},
                                {"most", p.most}}
      .dump();
}

int bench_scaling(const RunSpec& spec, const ScalingSpec& scaling, const CommandOptions& options) {
  const std::vector<Series> all = series_of(spec, scaling);
  for (const Series& series : all) parse_emulation(series.emulate);
  if (scaling.counts.empty() || scaling.counts.front() != 1 ||
      !std::is_sorted(scaling.counts.begin(), scaling.counts.end()) || scaling.counts.back() > 64)
    throw ConfigError("--counts", "the ranks to compare rise from 1 to at most 64: --counts 1,2,4,8");
  if (options.dry_run) {
    print_dry_run(fmt::format("would train {} with {} ranks, each alone, over a slow link{}", spec.model.name,
                              fmt::join(scaling.counts, ", "),
                              scaling.straggler.empty() ? "" : ", and with a straggler"),
                  options.json);
    return 0;
  }
  const ScalingFolder folder;
  if (!options.json) {
    const std::string computation =
        scaling.compute_ms > 0
            ? fmt::format("the computation of a step is EMULATED: {:g} ms{}, by sleeping", scaling.compute_ms,
                          scaling.strong ? " divided among the ranks" : " on each rank")
            : "the computation is real";
    print_line(fmt::format("{} samples {}, {} steps; {}; the exchange is real", scaling.batch,
                           scaling.strong ? "over all ranks" : "per rank", scaling.steps, computation));
    print_line(scaling_heading());
  }
  std::vector<ScalingPoint> points;
  for (const Series& series : all) {
    for (const int64_t ranks : scaling.counts) {
      points.push_back(measure_point(spec, scaling, series, ranks, folder.path()));
      judge_scaling(points);
      print_line(options.json ? to_json(points.back()) : to_text(points.back()));
    }
  }
  if (options.json) print_line(end_of_list(points.size()));
  return 0;
}

}  // namespace starling
