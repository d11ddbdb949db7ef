#include "starling/report/exchange_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(ExchangeTime, IsFireCaffesFormula) {
  EXPECT_DOUBLE_EQ(star_time(128), 128);
  EXPECT_DOUBLE_EQ(tree_time(128), 14);
  EXPECT_DOUBLE_EQ(ring_time(4), 1.5);
  Comparison comparison;
  comparison.exchange_bytes = 30e6;
  comparison.exchange_bytes_per_s = 3e9;
  comparison.exchanges = {{"ring", {{2, 0.012}, {4, 0.018}}}};
  const LineChart chart = exchange_chart(comparison);
  ASSERT_EQ(chart.series.size(), 4u);
  EXPECT_NEAR(chart.series[3].points[1].second, 1.8, 1e-9);
  EXPECT_EQ(chart.series[3].run, chart.series[2].run);
}

}  // namespace
}  // namespace starling
