#include "starling/commands/plan_memory.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;

Config config_of(const std::vector<std::string>& assignments) {
  Config config;
  for (const std::string& assignment : assignments) apply_set(config, assignment);
  return config;
}

// The paper's figure 1: 7.5 billion parameters, 64 ranks, mixed-precision Adam.
TEST(PlanMemory, PrintsTheFigureOfThePaper) {
  const MemoryPlan plan = plan_memory(config_of({"train.ranks=64"}), 7.5e9);
  EXPECT_DOUBLE_EQ(plan.states(Shard::kNone).total(), 120e9);
  EXPECT_NEAR(plan.states(Shard::kOptimizer).total(), 31.4e9, 0.05e9);
  EXPECT_NEAR(plan.states(Shard::kGradients).total(), 16.6e9, 0.05e9);
  EXPECT_NEAR(plan.states(Shard::kParameters).total(), 1.9e9, 0.05e9);
  const std::string text = to_text(plan);
  for (const char* shown : {"120 GB", "31.4 GB", "16.6 GB", "1.9 GB", "bf16, adam"})
    EXPECT_THAT(text, HasSubstr(shown));
}

// A trillion parameters with 20 billion per node need 50 nodes of 16 GPUs each.
TEST(PlanMemory, PutsATrillionParametersOnFiftyStagesOfSixteen) {
  const MemoryPlan plan = plan_memory(config_of({"train.mesh=\"stage=50,replica=16\""}), 1e12);
  EXPECT_EQ(plan.mesh.ranks(), 800);
  EXPECT_DOUBLE_EQ(plan.largest_part(), 20e9);
  EXPECT_DOUBLE_EQ(plan.states(Shard::kNone).total(), 320e9);
  EXPECT_DOUBLE_EQ(plan.states(Shard::kParameters).total(), 20e9);
  EXPECT_DOUBLE_EQ(plan.all_ranks(Shard::kParameters), 16e12);
  EXPECT_DOUBLE_EQ(plan.received_bytes(Shard::kParameters), 2.0 * 3 * 20e9 * 15 / 16);
}

TEST(PlanMemory, CountsTheConfiguredModel) {
  const MemoryPlan plan =
      plan_memory(config_of({"model.name=mlp", "train.ranks=2", "optimizer.momentum=0"}), 0);
  EXPECT_DOUBLE_EQ(plan.parameters, 784 * 256 + 256 + 256 * 10 + 10);
  EXPECT_EQ(plan.optimizer_states, 0);
  EXPECT_DOUBLE_EQ(plan.states(Shard::kNone).total(), 8 * plan.parameters);
  EXPECT_DOUBLE_EQ(plan_memory(config_of({"model.name=nin"}), 0).parameters,
                   7595176);  // from the table of zoo_test
}

TEST(PlanMemory, CutsTheModelIntoStages) {
  const MemoryPlan plan = plan_memory(config_of({"model.name=gpt", "train.mesh=stage=2"}), 0);
  ASSERT_EQ(plan.rank_parameters.size(), 2u);
  const double both = plan.rank_parameters[0] + plan.rank_parameters[1];
  const double tied = 50257.0 * 384;  // the embedding is the head's matrix too, and both stages hold it
  EXPECT_DOUBLE_EQ(both, plan.parameters + tied);
}

TEST(PlanMemory, PrintsAJsonObjectForEachShard) {
  std::istringstream lines(
      to_json(plan_memory(config_of({"train.ranks=64", "train.shard=optimizer"}), 7.5e9)));
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 6u);
  EXPECT_EQ(objects[0]["shard"], "optimizer");
  EXPECT_EQ(objects[4]["shard"], "parameters");
  EXPECT_DOUBLE_EQ(objects[4]["bytes_a_rank"], 16 * 7.5e9 / 64);
  EXPECT_EQ(objects[5]["event"], "result");
}

TEST(PlanMemory, RefusesWhatCannotBe) {
  EXPECT_THROW(plan_memory(config_of({"train.ranks=3", "train.mesh=stage=2"}), 1e9), ConfigError);
  EXPECT_THROW(plan_memory(config_of({"model.name=mlp", "train.mesh=stage=9"}), 0), ConfigError);
  EXPECT_THROW(plan_memory(Config{}, -1), ConfigError);
}

}  // namespace
}  // namespace starling
