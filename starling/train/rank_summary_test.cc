#include "starling/train/rank_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

namespace starling {
namespace {

using testing::ElementsAre;

RankSummary moved(double step_bytes, std::vector<double> from_servers = {}) {
  RankSummary summary;
  summary.bytes_sent = step_bytes + 7;
  summary.step_bytes = step_bytes;
  summary.peak_rss_mb = step_bytes / 2;
  summary.from_servers = std::move(from_servers);
  return summary;
}

TEST(RankSummary, ItsNumbersMakeAnEqualOne) {
  RankSummary summary;
  summary.bytes_sent = 1;
  summary.peak_rss_mb = 2;
  summary.step_bytes = 3;
  summary.test_loss = 4;
  summary.test_samples = 5;
  summary.test_weight = 6;
  summary.compute_s = 7;
  summary.exposed_comm_s = 8;
  summary.data_wait_s = 9;
  summary.from_servers = {10, 11, 12};
  summary.metrics = {0.5, 0.25};
  summary.metric_weights = {8, 9};
  const RankSummary other = RankSummary::of(summary.numbers());
  EXPECT_EQ(other.bytes_sent, 1);
  EXPECT_EQ(other.peak_rss_mb, 2);
  EXPECT_EQ(other.step_bytes, 3);
  EXPECT_EQ(other.test_loss, 4);
  EXPECT_EQ(other.test_samples, 5);
  EXPECT_EQ(other.test_weight, 6);
  EXPECT_EQ(other.compute_s, 7);
  EXPECT_EQ(other.exposed_comm_s, 8);
  EXPECT_EQ(other.data_wait_s, 9);
  EXPECT_EQ(other.from_servers, summary.from_servers);
  EXPECT_EQ(other.metrics, summary.metrics);
  EXPECT_EQ(other.metric_weights, summary.metric_weights);
  std::vector<double> numbers = summary.numbers();
  numbers.pop_back();
  EXPECT_THROW(RankSummary::of(numbers), std::out_of_range);
}

TEST(RankSummary, BytesOfServersCountServerByServer) {
  RunResult result;
  add_up_bytes({moved(10, {30, 6}), std::nullopt, moved(20, {30, 4})}, result);
  EXPECT_EQ(result.bytes_sent, 17u + 27 + 70);
  EXPECT_EQ(result.strategy["step_bytes"], 100);
  EXPECT_EQ(result.strategy["bytes_balance"], 60 / (100.0 / 4));  // two ranks and two servers
  EXPECT_THAT(result.peak_rss_mb, ElementsAre(5, 10));
}

TEST(RankSummary, WithoutBytesThereIsNoBalance) {
  RunResult result;
  add_up_bytes({moved(0), moved(0)}, result);
  EXPECT_EQ(result.strategy.count("bytes_balance"), 0u);
}

std::vector<int64_t> ranks_of(const RunResult& result) {
  std::vector<int64_t> ranks;
  for (const RankTimes& times : result.rank_times) ranks.push_back(times.rank);
  return ranks;
}

TEST(RankSummary, TimesHaveTheRanksOfTheStart) {
  RunResult result;
  result.lost_ranks = {1};
  list_rank_times({moved(1), std::nullopt, moved(2)}, 3, result);  // workers of servers keep their ranks
  EXPECT_THAT(ranks_of(result), ElementsAre(0, 2));
  RankSummary timed = moved(2);
  timed.compute_s = 7;
  timed.exposed_comm_s = 8;
  timed.data_wait_s = 9;
  list_rank_times({moved(1), timed}, 3, result);  // a group of the remaining ranks
  ASSERT_THAT(ranks_of(result), ElementsAre(0, 2));
  EXPECT_EQ(result.rank_times[1].compute_s, 7);
  EXPECT_EQ(result.rank_times[1].exposed_comm_s, 8);
  EXPECT_EQ(result.rank_times[1].data_wait_s, 9);
}

// A metric may be a mean over something else than the loss, such as the tokens of one kind.
TEST(RankSummary, EachMetricHasWeightsOfItsOwn) {
  RankSummary a, b;
  a.test_samples = 10;
  a.test_weight = 1;
  a.test_loss = 2;
  a.metrics = {0.5, 7};
  a.metric_weights = {30, 0};  // no sample of this rank counts for the second metric
  b = a;
  b.test_weight = 3;
  b.test_loss = 4;
  b.metrics = {0.9, 8};
  b.metric_weights = {10, 5};
  RankSummary idle;
  idle.metrics = {0, 0};
  idle.metric_weights = {0, 0};
  const EvalDone done = evaluation_of({std::nullopt, a, b, idle}, {{"accuracy", {}}, {"score", {}}});
  EXPECT_DOUBLE_EQ(done.loss, (2 * 1 + 4 * 3) / 4.0);
  EXPECT_DOUBLE_EQ(done.accuracy, (0.5 * 30 + 0.9 * 10) / 40);
  EXPECT_DOUBLE_EQ(done.metrics.at("score"), 8);
}

}  // namespace
}  // namespace starling
