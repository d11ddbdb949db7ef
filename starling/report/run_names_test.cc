#include "starling/report/run_names.h"

#include <gmock/gmock.h>

namespace starling {
namespace {

using testing::ElementsAre;

std::vector<std::string> names(const std::vector<std::string>& flags, int64_t ranks = 4) {
  std::vector<NamedRun> runs = {{"one rank", 1}};
  for (const std::string& text : flags) runs.push_back({text, ranks});
  std::vector<std::string> out = short_names(runs);
  EXPECT_EQ(out.front(), "one rank");
  out.erase(out.begin());
  return out;
}

TEST(RunNames, SayTheExchangeElseWhatElseTheRunIs) {
  EXPECT_THAT(names({"all-reduce", "admm:every=1:rho=4:adaptive_rho=false:optimizer.momentum=0", "codec=1bit",
                     "shard=parameters", "mesh=stage=2:schedule=gpipe", "mesh=replica=2,stage=2", "late",
                     "downpour:servers=2:mesh=replica=2,stage=2"}),
              ElementsAre("all-reduce", "admm", "1bit", "ZeRO-3", "gpipe", "replica ×2 stage ×2", "late",
                          "downpour"));
  EXPECT_THAT(names({"all-reduce:codec=int8", "optimizer.lr=0.1"}), ElementsAre("int8", "lr 0.1"));
}

TEST(RunNames, OfSeveralRunsWithOneNameSayTheFlagsThatDiffer) {
  EXPECT_THAT(names({"gossip:graph=ring:lr=0.1", "gossip:graph=exponential:lr=0.1"}),
              ElementsAre("gossip ring", "gossip exponential"));
  EXPECT_THAT(names({"codec=1bit", "codec=1bit:feedback=off"}), ElementsAre("1bit", "1bit feedback off"));
  EXPECT_THAT(names({"parameter-server:staleness=0:emulate=jitter=4x@10%",
                     "parameter-server:staleness=3:emulate=jitter=4x@10%",
                     "parameter-server:staleness=3:optimizer.momentum=0.5:emulate=jitter=4x@10%"}),
              ElementsAre("parameter-server staleness 0", "parameter-server staleness 3",
                          "parameter-server staleness 3 momentum 0.5"));
}

TEST(RunNames, SayTheRanksWhereTheyDiffer) {
  EXPECT_THAT(short_names({{"one rank", 1}, {"admm", 4}, {"gossip", 2}, {"central", 2}}),
              ElementsAre("one rank", "admm ×4", "gossip", "central"));
  EXPECT_THAT(short_names({{"one rank", 1}, {"all-reduce:n=2", 2}, {"all-reduce:n=4", 4}}),
              ElementsAre("one rank", "all-reduce ×2", "all-reduce ×4"));
  // Runs that failed before they started: the flags give the ranks.
  EXPECT_THAT(short_names({{"one rank", 1}, {"all-reduce:n=2", 0}, {"all-reduce:n=4", 0}, {"gossip", 0}}),
              ElementsAre("one rank", "all-reduce ×2", "all-reduce ×4", "gossip"));
}

TEST(RunNames, AreUniqueWhateverTheFlags) {
  EXPECT_THAT(names({"gossip", "gossip:exchange.graph=ring", "gossip:graph=ring", "exchange=gossip"}),
              ElementsAre("gossip", "gossip ring", "gossip ring (2)", "gossip (2)"));
  EXPECT_THAT(short_names({{"one rank", 1}, {"", 0}, {":", 0}, {"=", 0}}).size(), 4u);
  EXPECT_TRUE(short_names({}).empty());
}

}  // namespace
}  // namespace starling
