#include "starling/report/loss_curve.h"

#include <gmock/gmock.h>

#include <cmath>

namespace starling {
namespace {

using testing::ElementsAre;

std::vector<RunPoint> points_of(const std::vector<double>& losses) {
  std::vector<RunPoint> points;
  for (const double loss : losses) {
    RunPoint point;
    point.step = static_cast<int64_t>(points.size()) + 1;
    point.seconds = 0.1 * static_cast<double>(point.step);
    point.loss = loss;
    points.push_back(point);
  }
  return points;
}

std::vector<double> losses_of(const std::vector<RunPoint>& points) {
  std::vector<double> losses;
  for (const RunPoint& point : points) losses.push_back(point.loss);
  return losses;
}

std::vector<int64_t> steps_of(const std::vector<RunPoint>& points) {
  std::vector<int64_t> steps;
  for (const RunPoint& point : points) steps.push_back(point.step);
  return steps;
}

TEST(LossCurve, AveragesOverASixteenthOfTheRun) {
  EXPECT_EQ(smoothing_steps(0), 1);
  EXPECT_EQ(smoothing_steps(31), 1);
  EXPECT_EQ(smoothing_steps(32), 2);
  EXPECT_EQ(smoothing_steps(384), 20);
  EXPECT_EQ(smoothing_steps(1599), 50);
  EXPECT_EQ(smoothing_steps(1600), 100);
  EXPECT_EQ(smoothing_steps(1'000'000), 1000);
}

TEST(LossCurve, IsTheWeightedMeanOfTheLossesUpToEachStep) {
  const std::vector<double> losses = {4, 1, 3, 0.5, 2, 7};
  const double weight = 2.0 / 6;  // of about 5 steps
  EXPECT_DOUBLE_EQ(smoothing_weight(5), weight);
  const std::vector<RunPoint> average = smoothed(points_of(losses), 5);
  for (size_t k = 0; k < losses.size(); ++k) {
    double sum = 0, weights = 0;
    for (size_t i = 0; i <= k; ++i) {
      const double w = weight * std::pow(1 - weight, static_cast<double>(k - i));
      sum += w * losses[i];
      weights += w;
    }
    EXPECT_NEAR(average[k].loss, sum / weights, 1e-12) << k;
    EXPECT_EQ(average[k].step, static_cast<int64_t>(k) + 1);
  }
  EXPECT_EQ(losses_of(smoothed(points_of(losses), 1)), losses);
}

TEST(LossCurve, KeepsALossThatIsNotFiniteOutOfTheAverage) {
  const std::vector<RunPoint> average = smoothed(points_of({2, std::nan(""), 2, INFINITY, 2}), 5);
  EXPECT_DOUBLE_EQ(average[0].loss, 2);
  EXPECT_TRUE(std::isnan(average[1].loss));
  EXPECT_DOUBLE_EQ(average[2].loss, 2);
  EXPECT_TRUE(std::isinf(average[3].loss));
  EXPECT_DOUBLE_EQ(average[4].loss, 2);
}

TEST(LossCurve, SamplesTheLastPointOfEachInterval) {
  const std::vector<RunPoint> points = points_of({1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(steps_of(sampled(points, 3)), ElementsAre(2, 4, 7));
  EXPECT_EQ(sampled(points, 100).size(), 7u);
  EXPECT_TRUE(sampled({}, 3).empty());
}

TEST(LossCurve, KeepsTheExtremesInTheirOrder) {
  const std::vector<RunPoint> points = points_of({5, 1, 2, 9, std::nan(""), 3, 8, 4, 4});
  EXPECT_THAT(steps_of(extremes(points, 2)), ElementsAre(2, 4, 6, 7));  // 1 and 9, then 3 and 8
  EXPECT_THAT(steps_of(extremes(points_of({3, 3, 3, 3}), 1)), ElementsAre(1, 4));
  EXPECT_EQ(extremes(points, 4).size(), 8u);  // all that are finite
}

}  // namespace
}  // namespace starling
