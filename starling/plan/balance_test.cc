#include "starling/plan/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::ElementsAre;

// Returns (largest cost of a stage, Σ stage²) of a cut.
std::pair<double, double> price(const std::vector<double>& costs, const std::vector<size_t>& cut) {
  double largest = 0, squares = 0;
  for (size_t s = 0; s + 1 < cut.size(); ++s) {
    const double cost = std::accumulate(costs.begin() + cut[s], costs.begin() + cut[s + 1], 0.0);
    largest = std::max(largest, cost);
    squares += cost * cost;
  }
  return {largest, squares};
}

// Tries all cuts of [begin, n) into `stages`, naively.
void best_of_all(const std::vector<double>& costs, int stages, std::vector<size_t> cut,
                 std::pair<double, double>& best) {
  if (stages == 1) {
    cut.push_back(costs.size());
    best = std::min(best, price(costs, cut));
    return;
  }
  for (size_t next = cut.back() + 1; next + stages - 1 <= costs.size(); ++next) {
    std::vector<size_t> longer = cut;
    longer.push_back(next);
    best_of_all(costs, stages - 1, longer, best);
  }
}

TEST(BalanceTest, EqualsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(1 + random() % 9);
    for (double& c : costs) c = random() % 20;
    const int stages = 1 + random() % costs.size();
    const std::vector<size_t> cut = balance_stages(costs, stages);
    ASSERT_EQ(cut.size(), stages + 1u);
    EXPECT_EQ(cut.front(), 0u);
    EXPECT_EQ(cut.back(), costs.size());
    for (int s = 0; s < stages; ++s) EXPECT_LT(cut[s], cut[s + 1]);
    std::pair<double, double> best{1e300, 1e300};
    best_of_all(costs, stages, {0}, best);
    EXPECT_EQ(price(costs, cut), best);
  }
}

TEST(BalanceTest, KnownCuts) {
  EXPECT_THAT(balance_stages({1, 1, 1, 1}, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(balance_stages({5, 1, 1, 1, 1, 1}, 2), ElementsAre(0, 1, 6));
  // the other stages are balanced, too
  EXPECT_THAT(balance_stages({9, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(balance_stages({0, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
}

TEST(BalanceTest, MoreStagesThanBlocksAreRefused) {
  EXPECT_THROW(balance_stages({1, 2}, 3), ConfigError);
  EXPECT_THROW(balance_stages({}, 1), ConfigError);
  EXPECT_THROW(balance_stages({1}, 0), ConfigError);
}

}  // namespace
}  // namespace starling
