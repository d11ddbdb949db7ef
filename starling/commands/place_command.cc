#include "starling/commands/place_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/commands/place_measure.h"
#include "starling/commands/place_methods.h"
#include "starling/commands/place_stop.h"
#include "starling/launch/environment.h"
#include "starling/place/device_text.h"
#include "starling/place/graph_file.h"
#include "starling/run/rank_program.h"
#include "starling/run/ranks/broadcast_text.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

constexpr DeviceLink kUsualLink = {50e-6, 1e9};  // unless the links are given or measured
constexpr size_t kMeasured = 3;                  // placements
constexpr int kTowers = 2, kTowerDepth = 4;      // of the graph "towers"
constexpr int64_t kUsualRounds = 15, kExampleRounds = 5;
constexpr const char *kUsualDevices = "1,0.5", *kExampleDevices = "0.2,0.1";

// One graph with its devices. A model of the zoo comes with it.
struct Problem {
  PlacementGraph graph;
  DeviceTopology topology;
  std::optional<PlacedModel> model;
};

bool is_file(const std::string& model) {
  return model.ends_with(".json");
}

bool is_zoo_model(const std::string& model) {
  return !model.empty() && model != "towers" && !is_file(model);
}

PolicyOptions policy_options(const RunSpec& spec, const PlaceSpec& what) {
  PolicyOptions options;
  options.seed = spec.train.seed;
  options.updates = what.updates;
  options.lr = what.policy_lr;
  return options;
}

AnnealingOptions annealing_options(const RunSpec& spec, const PlaceSpec& what) {
  AnnealingOptions options;
  options.seed = spec.train.seed;
  options.moves = what.moves;
  return options;
}

DeviceTopology topology_of(const PlaceSpec& what, const DeviceLink& link) {
  DeviceTopology topology;
  topology.devices = parse_devices(what.devices.empty() ? kUsualDevices : what.devices);
  const size_t count = topology.devices.size();
  topology.links.assign(count, std::vector<DeviceLink>(count, link));
  return topology;
}

bool gives_link(const PlaceSpec& what) {
  return what.latency_us >= 0 || what.bandwidth_mb_s > 0;
}

// Returns what a file holds, with the devices of the flags if it names none. Errors: those of
// parse_placement_file(), and ConfigError for flags that the file replaces.
PlacementFile checked_file(const PlaceSpec& what, const std::string& text) {
  PlacementFile file = parse_placement_file(text, what.model);
  if (file.topology && (!what.devices.empty() || gives_link(what)))
    throw ConfigError(
        what.devices.empty() ? (what.latency_us >= 0 ? "--latency" : "--bandwidth") : "--devices",
        fmt::format("{} names the devices and their link; leave out the flag, or take the "
                    "devices out of the file",
                    what.model));
  return file;
}

// Returns the link of the flags. What is not given is measured between two ranks if a model is measured too.
// Otherwise it has a usual value. Collective.
DeviceLink link_of(const PlaceSpec& what, const RunEnvironment& environment) {
  DeviceLink link = kUsualLink;
  const bool given = what.latency_us >= 0 && what.bandwidth_mb_s > 0;
  if (is_zoo_model(what.model) && !given && environment.group.size() > 1)
    link = measure_link(environment.group, environment.process.clock);
  if (what.latency_us >= 0) link.latency_s = what.latency_us * 1e-6;
  if (what.bandwidth_mb_s > 0) link.bytes_per_s = what.bandwidth_mb_s * 1e6;
  return link;
}

ModelSpec model_spec(const RunSpec& spec, const PlaceSpec& what) {
  ModelSpec model = spec.model;
  model.name = what.model;
  return model;
}

// Rank 0 measures the blocks of a model, and all ranks take its times. The ranks meet after each round, so
// that none waits for rank 0 for longer than a round. Collective.
PlacementGraph profiled_graph(const PlacedModel& model, const PlaceSpec& what,
                              const RunEnvironment& environment) {
  Group& group = environment.group;
  const auto meet = [&](bool more) {
    int64_t again = more && !environment.process.stop ? 1 : 0;
    if (group.size() > 1) broadcast(group, &again, 1, DataType::kInt64, 0);
    return again != 0;
  };
  std::string text;
  if (group.rank() == 0)
    text = placement_file_text(
        profile_model(model, what.micro_batches, what.branches, environment.process.clock, meet));
  else
    while (meet(false)) continue;
  return parse_placement_file(broadcast_text(group, text), what.model).graph;
}

// Collective: rank 0 reads the file or measures the model.
Problem problem_of(const RunSpec& spec, const PlaceSpec& what, const RunEnvironment& environment) {
  Problem problem;
  const DeviceLink link = link_of(what, environment);
  problem.topology = topology_of(what, link);
  if (is_file(what.model)) {
    std::string text;
    if (environment.group.rank() == 0) text = read_placement_text(what.model);
    PlacementFile file = checked_file(what, broadcast_text(environment.group, text));
    if (file.topology) problem.topology = std::move(*file.topology);
    problem.graph = std::move(file.graph);
  } else if (!is_zoo_model(what.model)) {
    problem.graph = make_towers(kTowers, kTowerDepth, spec.train.seed);
  } else {
    problem.model = placed_model(model_spec(spec, what), what.pixels, what.samples, spec.train.seed);
    problem.graph = profiled_graph(*problem.model, what, environment);
    if (what.branches && problem.graph.is_chain())
      throw ConfigError("--branches", fmt::format("{} has no parallel branches; leave it out", what.model));
  }
  return problem;
}

std::string problem_text(const Problem& problem, int micro_batches) {
  std::vector<std::string> devices;
  for (const PlacementDevice& device : problem.topology.devices) {
    devices.push_back(std::isfinite(device.memory_bytes)
                          ? fmt::format("{:g} with {:g} MB", device.speed, device.memory_bytes / 1e6)
                          : fmt::format("{:g}", device.speed));
  }
  const DeviceLink& link = problem.topology.links[0].back();
  return fmt::format(
      "{}: {} groups{}, {} micro-batches, devices of speed {}, links of {:.3g} µs and {:.4g} MB/s",
      problem.graph.name, problem.graph.groups.size(), problem.graph.is_chain() ? " in a chain" : "",
      micro_batches, fmt::join(devices, " and "), link.latency_s * 1e6, link.bytes_per_s / 1e6);
}

std::string policy_text(const PolicyResult& policy, int ranks) {
  return fmt::format(
      "  policy: {} parameters, {} worker{}, {:.2f} MB between rank 0 and the server; mean reward "
      "{:.4f} at first, {:.4f} at last",
      policy.parameters, ranks, ranks == 1 ? "" : "s", policy.bytes_exchanged / 1e6, policy.first_reward,
      policy.last_reward);
}

// How a measurement ended.
struct Measurement {
  double largest_deviation = -1;  // of a prediction; −1: nothing was measured
  bool interrupted = false;
};

// Measures the best placements that are stages, and prints them on rank 0. Collective.
Measurement measure_best(const Problem& problem, const StepSimulator& simulator, const MethodTable& table,
                         const PlaceSpec& what, const CommandOptions& options, const RunSpec& spec,
                         const RunEnvironment& environment) {
  const std::vector<Placement> placements =
      best_stages(table, simulator, kMeasured, environment.group.size());
  if (placements.empty()) return {};
  const std::vector<double> seconds = measure_placements(simulator, placements, *problem.model, spec,
                                                         environment, static_cast<int>(what.rounds));
  if (seconds.empty()) return {.interrupted = true};
  const bool speaks = environment.group.rank() == 0;
  if (speaks && !options.json)
    print_line(fmt::format("  measured in turn, median of {} steps:\n  {:>12} {:>12} {:>10}  devices",
                           what.rounds, "predicted ms", "measured ms", "deviation"));
  double largest = 0;
  for (size_t p = 0; p < placements.size(); ++p) {
    const double predicted = simulator.run(placements[p]).seconds;
    const double deviation = predicted / seconds[p] - 1;
    largest = std::max(largest, std::abs(deviation));
    if (!speaks) continue;
    if (options.json)
      print_line(nlohmann::ordered_json{{"event", "measured"},
                                        {"graph", problem.graph.name},
                                        {"devices", placements[p]},
                                        {"predicted_s", predicted},
                                        {"paced_s", paced_seconds(simulator, placements[p])},
                                        {"measured_s", seconds[p]},
                                        {"deviation", deviation}}
                     .dump());
    else
      print_line(fmt::format("  {:>12.3f} {:>12.3f} {:>9.1f}%  {}", 1e3 * predicted, 1e3 * seconds[p],
                             100 * deviation, placement_text(placements[p])));
  }
  return {largest, false};
}

// event: "result" for the last graph, and "graph" for the graphs before.
nlohmann::ordered_json result_of(const char* event, const Problem& problem, const MethodTable& table,
                                 const Measurement& measured, int ranks) {
  nlohmann::ordered_json line = {{"event", event},
                                 {"graph", problem.graph.name},
                                 {"groups", problem.graph.groups.size()},
                                 {"ranks", ranks},
                                 {"exhaustive", table.exhaustive},
                                 {"policy_parameters", table.policy.parameters},
                                 {"policy_bytes", table.policy.bytes_exchanged},
                                 {"policy_first_reward", table.policy.first_reward},
                                 {"policy_last_reward", table.policy.last_reward},
                                 {"interrupted", measured.interrupted}};
  if (std::isfinite(table.best)) line["seconds"] = table.best;
  if (measured.largest_deviation >= 0) line["largest_deviation"] = measured.largest_deviation;
  return line;
}

void save_graph(const std::string& path, const PlacementGraph& graph) {
  AtomicFile file(path);
  const std::string text = placement_file_text(graph);
  file.write(text.data(), text.size());
  file.commit();
}

// Places one graph. Returns false after a signal. Collective.
bool place_graph(const RunSpec& spec, const PlaceSpec& what, const char* event, const CommandOptions& options,
                 const RunEnvironment& environment, LoopState& loop) {
  const int ranks = environment.group.size();
  const bool speaks = environment.group.rank() == 0;
  Problem problem = problem_of(spec, what, environment);
  problem.graph.name = what.model;
  if (speaks && !what.save_graph.empty()) save_graph(what.save_graph, problem.graph);
  const StepSimulator simulator(problem.graph, problem.topology, what.micro_batches);
  if (speaks && !options.json && options.verbosity >= 0)
    print_line(problem_text(problem, what.micro_batches));
  const MethodTable table = compare_methods(simulator, annealing_options(spec, what),
                                            policy_options(spec, what), spec, environment, loop);
  if (speaks && options.json)
    for (const std::string& line : to_json(table, problem.graph.name)) print_line(line);
  if (speaks && !options.json) print_line(to_text(table));
  if (speaks && !options.json) print_line(policy_text(table.policy, ranks));
  Measurement measured{.interrupted = table.interrupted};
  if (what.measure && !measured.interrupted) {
    loop.leave_servers();  // a server that hears nothing during the measurement would report lost workers
    measured = measure_best(problem, simulator, table, what, options, spec, environment);
    if (speaks && measured.largest_deviation < 0 && !measured.interrupted && !options.json)
      print_line("  no placement is a chain of stages on as many ranks, so nothing was measured");
  }
  measured.interrupted = is_stopped(environment, measured.interrupted);
  if (speaks && options.json) print_line(result_of(event, problem, table, measured, ranks).dump());
  return !measured.interrupted;
}

// The example: a graph with branches, then a small transformer whose placements are measured.
std::vector<PlaceSpec> problems_of(const PlaceSpec& what) {
  if (!what.model.empty()) {
    PlaceSpec given = what;
    if (given.rounds == 0) given.rounds = kUsualRounds;
    return {given};
  }
  PlaceSpec towers = what, gpt = what;
  towers.model = "towers";
  towers.measure = false;
  gpt.model = "gpt";
  gpt.measure = true;
  if (gpt.devices.empty()) gpt.devices = kExampleDevices;
  if (gpt.rounds == 0) gpt.rounds = kExampleRounds;
  return {towers, gpt};
}

RunSpec example_sizes(RunSpec spec) {
  spec.model.layers = 6;
  spec.model.width = 96;
  spec.model.heads = 4;
  spec.model.tokens = 64;
  return spec;
}

// Refuses flags that contradict each other or that nothing would read.
void check_flags(const PlaceSpec& what) {
  const bool batches = what.model.empty() || is_zoo_model(what.model);
  if (batches && what.samples % what.micro_batches != 0)
    throw ConfigError("--samples", fmt::format("{} samples cannot be divided into {} micro-batches",
                                               what.samples, what.micro_batches));
  if (!what.save_graph.empty() && what.model.empty())
    throw ConfigError("--save-graph", "needs MODEL, because two graphs are placed without it");
  if (what.branches && !is_zoo_model(what.model))
    throw ConfigError("--branches", "needs a model of the zoo that has branches, such as googlenet");
  if (what.rounds > 0 && !what.measure && !what.model.empty())
    throw ConfigError("--rounds", "needs --measure");
  if (!what.model.empty() && what.measure && !is_zoo_model(what.model))
    throw ConfigError("--measure", "needs a model of the zoo, which the ranks can train");
  if (what.measure && what.branches)
    throw ConfigError("--measure", "needs a chain of blocks; leave out --branches");
  if (what.devices.empty()) return;
  for (const PlacementDevice& device : parse_devices(what.devices)) {
    if ((what.measure || what.model.empty()) && device.speed > 1)
      throw ConfigError("--devices",
                        fmt::format("{} has the speed {:g}; a rank can emulate a device only if its "
                                    "speed is at most 1, that of the rank",
                                    device.name, device.speed));
  }
}

}  // namespace

void check_place(const RunSpec& spec, const PlaceSpec& what) {
  const std::string& name = spec.exchange.name;
  if (name != exchange_table().front().name && name != "parameter-server")
    throw ConfigError("--exchange",
                      fmt::format("the workers of place use a parameter server; leave out \"{}\"", name));
  check_policy(policy_options(spec, what));
  check_flags(what);
  if (is_file(what.model)) {
    if (read_environment(::environ).identity.rank == 0) checked_file(what, read_placement_text(what.model));
  } else if (is_zoo_model(what.model)) {
    const ModelSpec model = model_spec(spec, what);
    zoo_model(model, placed_shape(model, what.pixels));
  }
}

std::string place_dry_run(const RunSpec& spec, const PlaceSpec& what) {
  std::string devices = what.devices.empty() ? kUsualDevices : what.devices;
  if (what.model.empty() && what.devices.empty()) devices += fmt::format(" and {}", kExampleDevices);
  if (is_file(what.model)) {
    const PlacementFile file = checked_file(what, read_placement_text(what.model));
    std::vector<double> speeds;
    if (file.topology)
      for (const PlacementDevice& device : file.topology->devices) speeds.push_back(device.speed);
    if (file.topology) devices = fmt::format("{}", fmt::join(speeds, ","));
  }
  return fmt::format("would place {} on devices of the speeds {} with {}",
                     what.model.empty() ? "two example graphs" : what.model, devices,
                     ranks_text(spec.train.ranks));
}

int run_place(const PlaceSpec& what, const CommandOptions& options, Session& session) {
  LoopState loop;  // of all policies; the server ends with it
  const RunEnvironment environment = session.run_environment();
  const RunSpec spec = what.model.empty() ? example_sizes(session.spec()) : session.spec();
  const std::vector<PlaceSpec> problems = problems_of(what);
  for (const PlaceSpec& problem : problems) {
    const char* event = &problem == &problems.back() ? "result" : "graph";
    if (!place_graph(spec, problem, event, options, environment, loop)) return interrupted_status(session);
  }
  return 0;
}

}  // namespace starling
