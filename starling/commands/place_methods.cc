#include "starling/commands/place_methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "starling/commands/place_stop.h"
#include "starling/place/best_chain.h"

namespace starling {
namespace {

void add_row(MethodTable& table, const StepSimulator& simulator, std::string method, FoundPlacement found) {
  const StepEstimate estimate = simulator.run(found.placement);
  found.cost = simulator.cost_of(estimate);
  if (estimate.fits()) table.best = std::min(table.best, estimate.seconds);
  table.rows.push_back({std::move(method), std::move(found), estimate.fits()});
}

}  // namespace

MethodTable compare_methods(const StepSimulator& simulator, const AnnealingOptions& annealing,
                            const PolicyOptions& policy, const RunSpec& spec,
                            const RunEnvironment& environment, LoopState& loop) {
  MethodTable table;
  table.best = std::numeric_limits<double>::infinity();
  add_row(table, simulator, "balanced cut", {balanced_placement(simulator), 0, 1});
  add_row(table, simulator, "fastest device",
          {on_one_device(simulator, simulator.topology().fastest()), 0, 1});
  if (simulator.graph().is_chain() && simulator.topology().size() <= kMostChainDevices) {
    if (const std::optional<ChainPlacement> chain = best_chain(simulator))
      add_row(table, simulator, "dynamic programming", {chain->placement, 0, 0});
  }
  const StopSearch stop = [&] { return environment.process.stop.load(); };
  add_row(table, simulator, "annealing", anneal(simulator, annealing, stop));
  // After a signal the policy makes one update, because the server waits for the workers and ends with them.
  table.policy = train_policy(simulator, policy, spec, environment, loop);
  add_row(table, simulator, "policy gradient", table.policy.best);
  add_row(table, simulator, "policy, most likely", table.policy.likely);
  table.interrupted = is_stopped(environment, table.policy.interrupted);
  if (table.interrupted) return table;
  if (const std::optional<FoundPlacement> all = search_all(simulator, kMostExhaustive, stop)) {
    add_row(table, simulator, "exhaustive search", *all);
    table.exhaustive = true;
  }
  table.interrupted = is_stopped(environment);
  return table;
}

std::string placement_text(const Placement& placement) {
  std::vector<std::string> runs;
  for (size_t g = 0; g < placement.size();) {
    const size_t begin = g;
    while (g < placement.size() && placement[g] == placement[begin]) ++g;
    runs.push_back(fmt::format("{}×{}", placement[begin], g - begin));
  }
  return fmt::format("{}", fmt::join(runs, " "));
}

std::string to_text(const MethodTable& table) {
  std::string text = fmt::format("  {:<20} {:>10} {:>8} {:>12}  {}\n", "method", "ms a step", "to best",
                                 "simulations", "devices");
  for (const MethodResult& row : table.rows) {
    const std::string time = row.fits ? fmt::format("{:.3f}", 1e3 * row.found.cost) : "no memory";
    const std::string ratio = row.fits ? fmt::format("{:.3f}", row.found.cost / table.best) : "-";
    const std::string simulations =
        row.found.simulations > 0 ? fmt::format("{}", row.found.simulations) : "-";
    text += fmt::format("  {:<20} {:>10} {:>8} {:>12}  {}\n", row.method, time, ratio, simulations,
                        placement_text(row.found.placement));
  }
  text.pop_back();
  return text;
}

std::vector<std::string> to_json(const MethodTable& table, const std::string& graph) {
  std::vector<std::string> lines;
  for (const MethodResult& row : table.rows) {
    nlohmann::ordered_json line = {{"event", "placement"},
                                   {"graph", graph},
                                   {"method", row.method},
                                   {"fits", row.fits},
                                   {"simulations", row.found.simulations},
                                   {"devices", row.found.placement}};
    if (row.fits) line["seconds"] = row.found.cost;
    if (row.fits) line["to_best"] = row.found.cost / table.best;
    lines.push_back(line.dump());
  }
  return lines;
}

std::vector<Placement> best_stages(const MethodTable& table, const StepSimulator& simulator, size_t count,
                                   int ranks) {
  std::vector<std::pair<double, Placement>> all;
  for (const MethodResult& row : table.rows) {
    const auto stages = stages_of(simulator.graph(), row.found.placement);
    if (row.fits && stages && static_cast<int>(stages->size()) <= ranks)
      all.emplace_back(row.found.cost, row.found.placement);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::vector<Placement> best;
  for (const auto& item : all)
    if (best.size() < count) best.push_back(item.second);
  return best;
}

}  // namespace starling
