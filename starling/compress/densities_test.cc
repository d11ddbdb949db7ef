#include "starling/compress/densities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;

const std::vector<LayerSize> kLayers = {{"fc1", 235'200}, {"fc2", 30'000}, {"fc3", 1000}};

std::string refusal(const std::string& text) {
  try {
    parse_densities(text, kLayers, "--layer-density");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

double kept_share(const LayerDensities& densities) {
  double kept = 0, all = 0;
  for (const LayerSize& layer : kLayers) {
    kept += densities.at(layer.name) * static_cast<double>(layer.weights);
    all += static_cast<double>(layer.weights);
  }
  return kept / all;
}

TEST(Densities, TheRuleKeepsTheGivenShareAndMoreOfSmallLayers) {
  for (const double density : {0.001, 0.08, 0.3, 0.9, 1.0}) {
    const LayerDensities densities = layer_densities(kLayers, density, {});
    EXPECT_NEAR(kept_share(densities), density, 1e-9);
    EXPECT_LE(densities.at("fc1"), densities.at("fc2"));
    EXPECT_LE(densities.at("fc2"), densities.at("fc3"));
    for (const auto& [name, d] : densities) EXPECT_LE(d, 1);
  }
  const LayerDensities densities = layer_densities(kLayers, 0.08, {});
  EXPECT_NEAR(densities.at("fc2") / densities.at("fc1"), std::pow(235'200.0 / 30'000, 0.3), 1e-6);
}

TEST(Densities, AGivenDensityStays) {
  const LayerDensities densities = layer_densities(kLayers, 0.1, {{"fc1", 0.5}});
  EXPECT_EQ(densities.at("fc1"), 0.5);
  EXPECT_NEAR(densities.at("fc2") * 30'000 + densities.at("fc3") * 1000, 3100, 1e-6);
  EXPECT_EQ(layer_densities(kLayers, 0.1, {{"fc1", 0.5}, {"fc2", 0.5}, {"fc3", 1}}).size(), 3);
}

TEST(Densities, AreReadFromText) {
  EXPECT_EQ(parse_densities("fc1=0.08,fc3=1", kLayers, "f"), (LayerDensities{{"fc1", 0.08}, {"fc3", 1}}));
  EXPECT_TRUE(parse_densities("", kLayers, "f").empty());
}

TEST(Densities, WhatIsNoDensity) {
  EXPECT_THAT(refusal("fc1"), HasSubstr("--layer-density: \"fc1\" is not LAYER=DENSITY"));
  for (const char* text : {"fc1=0", "fc1=-1", "fc1=1.5", "fc1=nan", "fc1=0.5x", "fc1="})
    EXPECT_THAT(refusal(text), HasSubstr("of fc1 is not a number above 0 and at most 1")) << text;
  EXPECT_THAT(refusal("fc9=0.1"), HasSubstr("no layer \"fc9\" that is pruned: it has fc1, fc2, fc3"));
  EXPECT_THAT(refusal("fc1=0.1,fc1=0.2"), HasSubstr("fc1 has two densities"));
}

TEST(Densities, AtLeastOneWeightRemains) {
  EXPECT_EQ(kept_of(1000, 1e-6), 1);
  EXPECT_EQ(kept_of(1000, 0.0806), 81);
  EXPECT_EQ(kept_of(1000, 1), 1000);
}

TEST(Densities, TheLargestMagnitudesRemain) {
  std::mt19937 random(7);
  std::vector<float> values(500);
  for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 41) - 20);
  for (const uint64_t keep : {0, 1, 17, 499, 500, 600}) {
    std::vector<uint64_t> order(values.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](uint64_t a, uint64_t b) { return std::abs(values[a]) > std::abs(values[b]); });
    order.resize(std::min<size_t>(keep, order.size()));
    std::sort(order.begin(), order.end());
    EXPECT_EQ(largest(values, keep), order);
  }
}

}  // namespace
}  // namespace starling
