#include "starling/plan/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "starling/base/error.h"

namespace starling {

std::vector<size_t> balance_stages(const std::vector<double>& costs, int stages) {
  const size_t n = costs.size();
  if (stages < 1 || static_cast<size_t>(stages) > n) {
    throw ConfigError("--mesh",
                      fmt::format("{} stages, but the model has {} blocks; use 1 to {} stages (a stage holds "
                                  "at least one block)",
                                  stages, n, n));
  }
  std::vector<double> before(n + 1, 0);  // before[i]: the sum of the costs of the blocks [0, i)
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + costs[i];

  // best[s][e] is the best cut of the blocks [0, e) into s stages (by the largest cost, then by Σ cost²), and
  // where the last stage begins.
  struct Best {
    double largest = std::numeric_limits<double>::infinity();
    double squares = std::numeric_limits<double>::infinity();
    size_t begin = 0;
  };
  // First find the smallest possible largest cost. Then find the smallest Σ cost² among cuts whose stages
  // stay within that cost.
  const auto solve = [&](double bound, auto better) {
    std::vector<std::vector<Best>> best(stages + 1, std::vector<Best>(n + 1));
    best[0][0] = {0, 0, 0};
    for (int s = 1; s <= stages; ++s) {
      for (size_t e = s; e <= n; ++e) {
        for (size_t b = s - 1; b < e; ++b) {
          const double cost = before[e] - before[b];
          const Best& rest = best[s - 1][b];
          if (cost > bound || rest.squares == std::numeric_limits<double>::infinity()) continue;
          const Best found{std::max(rest.largest, cost), rest.squares + cost * cost, b};
          if (better(found, best[s][e])) best[s][e] = found;
        }
      }
    }
    return best;
  };
  const auto by_largest = solve(std::numeric_limits<double>::infinity(),
                                [](const Best& a, const Best& b) { return a.largest < b.largest; });
  const auto by_squares = solve(by_largest[stages][n].largest,
                                [](const Best& a, const Best& b) { return a.squares < b.squares; });
  std::vector<size_t> cut(stages + 1, n);
  for (int s = stages; s > 0; --s) cut[s - 1] = by_squares[s][cut[s]].begin;
  return cut;
}

}  // namespace starling
