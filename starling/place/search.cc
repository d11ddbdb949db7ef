#include "starling/place/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/plan/balance.h"

namespace starling {
namespace {

constexpr int64_t kDescents = 4;       // of the temperature; a descent finds only what is near its beginning
constexpr int64_t kMovesPerLook = 64;  // of StopSearch

// Random numbers that are equal with every standard library.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed) {}
  // Returns a number from 0 to `end` − 1.
  int below(int end) { return static_cast<int>(random_() % static_cast<uint64_t>(end)); }
  // Returns a number from 0 to 1, without 1.
  double share() { return uniform_of(random_()); }

 private:
  std::mt19937_64 random_;
};

// Gives one group or several consecutive groups another device, or exchanges the devices of two groups.
void change(Placement& placement, int devices, Draws& draws) {
  const int n = static_cast<int>(placement.size());
  const int kind = draws.below(3);
  const int begin = draws.below(n);
  if (kind == 2) {
    std::swap(placement[static_cast<size_t>(begin)], placement[static_cast<size_t>(draws.below(n))]);
    return;
  }
  const int end = kind == 0 ? begin + 1 : begin + 1 + draws.below(n - begin);
  const int before = placement[static_cast<size_t>(begin)];
  const int device = (before + 1 + draws.below(devices - 1)) % devices;
  std::fill(placement.begin() + begin, placement.begin() + end, device);
}

// Returns random devices for as many groups.
Placement scattered(Placement placement, int devices, Draws& draws) {
  for (int& device : placement) device = draws.below(devices);
  return placement;
}

// Returns true if it is time to ask `stop`, and `stop` returns true.
bool is_over(const StopSearch& stop, int64_t move) {
  return stop && move % kMovesPerLook == 0 && stop();
}

// Lowers the temperature once, from the first to the last, in so many moves, and begins with `present`.
// Returns the best placement so far. The temperature is a share of the lowest cost so far.
FoundPlacement descend(const StepSimulator& simulator, const AnnealingOptions& options, int64_t moves,
                       Placement present, FoundPlacement best, Draws& draws, const StopSearch& stop) {
  const double fall = std::log(options.last_share / options.first_share);
  double present_cost = simulator.cost(present);
  for (int64_t move = 0; move < moves && !is_over(stop, move); ++move) {
    const double done = static_cast<double>(move) / static_cast<double>(moves);
    const double temperature = best.cost * options.first_share * std::exp(fall * done);
    Placement next = present;
    change(next, simulator.topology().size(), draws);
    const double cost = simulator.cost(next);
    ++best.simulations;
    if (cost > present_cost && draws.share() >= std::exp((present_cost - cost) / temperature)) continue;
    present = std::move(next);
    present_cost = cost;
    if (cost < best.cost) best = {present, cost, best.simulations};
  }
  return best;
}

FoundPlacement first_placement(const StepSimulator& simulator) {
  FoundPlacement best{balanced_placement(simulator), 0, 1};
  best.cost = simulator.cost(best.placement);
  for (int device = 0; device < simulator.topology().size(); ++device) {
    Placement alone = on_one_device(simulator, device);
    const double cost = simulator.cost(alone);
    ++best.simulations;
    if (cost < best.cost) best = {std::move(alone), cost, best.simulations};
  }
  return best;
}

}  // namespace

std::optional<FoundPlacement> search_all(const StepSimulator& simulator, int64_t most,
                                         const StopSearch& stop) {
  const int devices = simulator.topology().size();
  const size_t n = simulator.graph().groups.size();
  double count = 1;
  for (size_t g = 0; g < n; ++g) count *= devices;
  if (count > static_cast<double>(most)) return {};
  Placement placement(n, 0);
  FoundPlacement best{placement, simulator.cost(placement), 1};
  while (true) {
    size_t g = 0;
    while (g < n && ++placement[g] == devices) placement[g++] = 0;
    if (g == n) return best;
    if (is_over(stop, best.simulations)) return {};
    const double cost = simulator.cost(placement);
    ++best.simulations;
    if (cost < best.cost) best = {placement, cost, best.simulations};
  }
}

FoundPlacement anneal(const StepSimulator& simulator, const AnnealingOptions& options,
                      const StopSearch& stop) {
  if (options.moves < 1)
    throw ConfigError("--moves", fmt::format("is {}, but must be at least 1", options.moves));
  if (!(options.first_share > 0) || !(options.last_share > 0))
    throw ConfigError("annealing", "the first and the last temperature must be above 0");
  FoundPlacement best = first_placement(simulator);
  const int devices = simulator.topology().size();
  if (devices == 1) return best;
  Draws draws(options.seed);
  const int64_t descents = std::min(kDescents, options.moves);
  for (int64_t descent = 0; descent < descents; ++descent) {
    const int64_t moves = options.moves / descents + (descent < options.moves % descents ? 1 : 0);
    Placement begin = descent == 0 ? best.placement : scattered(best.placement, devices, draws);
    best = descend(simulator, options, moves, std::move(begin), best, draws, stop);
  }
  return best;
}

Placement balanced_placement(const StepSimulator& simulator) {
  std::vector<double> costs;
  for (const OperationGroup& group : simulator.graph().groups)
    costs.push_back(group.forward_s + group.backward_s);
  const int stages = std::min(simulator.topology().size(), static_cast<int>(costs.size()));
  const std::vector<size_t> cut = balance_stages(costs, stages);
  Placement placement(costs.size(), 0);
  for (int s = 0; s < stages; ++s) {
    for (size_t g = cut[static_cast<size_t>(s)]; g < cut[static_cast<size_t>(s) + 1]; ++g) placement[g] = s;
  }
  return placement;
}

Placement on_one_device(const StepSimulator& simulator, int device) {
  return Placement(simulator.graph().groups.size(), device);
}

}  // namespace starling
