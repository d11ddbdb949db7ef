#include "starling/spec/run_text.h"

#include <gmock/gmock.h>

#include <fstream>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Config run(const std::string& text, int64_t ranks = 4) {
  Config base;
  base.spec.train.ranks = ranks;
  return config_of_run(base, {}, text);
}

std::string error_of(const std::string& text) {
  try {
    run(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunText, SplitsAtCommasOrSemicolons) {
  EXPECT_THAT(split_runs("all-reduce, gossip:graph=ring,"), ElementsAre("all-reduce", "gossip:graph=ring"));
  EXPECT_THAT(split_runs("mesh=replica=2,stage=2; codec=lowrank:form=pca,rank=2"),
              ElementsAre("mesh=replica=2,stage=2", "codec=lowrank:form=pca,rank=2"));
  EXPECT_THROW(split_runs(" , "), ConfigError);
  EXPECT_THROW(split_runs("admm,gossip,admm"), ConfigError);
}

TEST(RunText, ReadsExchangesFlagsAndKeys) {
  EXPECT_EQ(run("admm").spec.exchange.name, "admm");
  const Config servers = run("parameter-server:staleness=3:servers=2");
  EXPECT_EQ(servers.spec.exchange.name, "parameter-server");
  EXPECT_EQ(servers.spec.exchange.staleness, "3");
  EXPECT_EQ(servers.spec.exchange.servers, 2);
  EXPECT_EQ(run("admm:rho=2:optimizer.momentum=0").spec.exchange.rho, 2);
  EXPECT_EQ(run("codec=lowrank:form=pca,rank=2").spec.exchange.codec, "lowrank:form=pca,rank=2");
  EXPECT_EQ(run("lr=0.5:codec=1bit:feedback=off").spec.exchange.codec, "1bit:feedback=off");
  EXPECT_EQ(run("lr=0.5:codec=1bit:feedback=off").spec.optimizer.lr, 0.5);
  EXPECT_EQ(run("shard=parameters").spec.train.shard, Shard::kParameters);
  EXPECT_EQ(run("shard=parameters:n=2").spec.train.ranks, 2);
}

TEST(RunText, AMeshBringsItsRanksWhereTheyDoNotFit) {
  EXPECT_EQ(run("mesh=stage=2").spec.train.ranks, 4);  // two replicas of two stages
  EXPECT_EQ(run("mesh=stage=2", 1).spec.train.ranks, 2);
  EXPECT_EQ(run("mesh=stage=3").spec.train.ranks, 3);
  EXPECT_EQ(run("mesh=replica=1,stage=2").spec.train.ranks, 2);
  EXPECT_EQ(run("mesh=stage=2:n=8").spec.train.ranks, 8);
}

TEST(RunText, PrefersARunOfTheFile) {
  const std::string path = testing::TempDir() + "run_text.toml";
  std::ofstream(path) << "[runs.admm]\nexchange.name = \"gossip\"\n";
  EXPECT_EQ(config_of_run(Config{}, {path}, "admm").spec.exchange.name, "gossip");
}

TEST(RunText, SaysWhatWasProbablyMeant) {
  EXPECT_THAT(error_of("gosip"), HasSubstr("--runs gosip: \"gosip\" is not a run: did you mean gossip?"));
  EXPECT_THAT(error_of("gossip:grap=ring"), HasSubstr("did you mean graph?"));
  EXPECT_THAT(error_of("gossip:graph=star"), HasSubstr("ring"));
  EXPECT_THAT(error_of("mesh=depth=2"), HasSubstr("no axis"));
}

}  // namespace
}  // namespace starling
