// Every rule of the advice: when it applies, and what it says.
#include "starling/report/advice.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <set>

#include "starling/base/error.h"
#include "starling/report/accepted_flags.h"
#include "starling/spec/command_line.h"
#include "starling/spec/print.h"
#include "starling/spec/validate.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

// A run of two ranks with a core each that does nothing but compute, for 100 s.
TimeAccount computing() {
  TimeAccount a;
  a.spec.emplace();
  a.spec->train.ranks = 2;
  a.exchange = exchange_traits("all-reduce");
  a.started.ranks = a.started.local_processes = a.started.local_cores = 2;
  a.started.global_batch = 64;
  a.steps = 100;
  a.test_samples = 1000;
  a.wall_s = 100;
  a.seconds[static_cast<int>(TimeUse::kComputation)] = 100;
  return a;
}

// Moves time from the computation to another category.
void spend(TimeAccount& a, TimeUse use, double seconds) {
  a.seconds[static_cast<int>(TimeUse::kComputation)] -= seconds;
  a.seconds[static_cast<int>(use)] += seconds;
}

void use_exchange(TimeAccount& a, const std::string& name) {
  a.spec->exchange.name = name;
  a.exchange = exchange_traits(name);
}

TimeAccount with_late_rank(double share) {
  TimeAccount a = computing();
  a.late = LateRank{1, "node-b", share, false, 3};
  spend(a, TimeUse::kWaiting, 100 * share);
  return a;
}

// A run whose ranks exchange over a network for `seconds` and send `bytes` per rank and step.
TimeAccount over_network(double seconds, double bytes = 1e6) {
  TimeAccount a = computing();
  a.hosts = 2;
  a.statistics["step_bytes"] = bytes * 200;  // of 100 steps on 2 ranks
  a.statistics_steps = 100;
  a.statistics_ranks = 2;
  spend(a, TimeUse::kExchange, seconds);
  return a;
}

// "rule: what"
std::string chosen(const TimeAccount& a) {
  const ChosenAdvice best = choose_advice(a);
  return best.rule + ": " + best.advice.what;
}

TEST(Advice, EveryRuleHasANameOfItsOwnAndIsSilentIfNothingIsWrong) {
  std::set<std::string> names;
  TimeAccount quiet = computing();
  quiet.seconds[static_cast<int>(TimeUse::kComputation)] = 0;
  quiet.seconds[static_cast<int>(TimeUse::kOther)] = 100;
  for (const AdviceRule& rule : advice_rules()) {
    EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
    EXPECT_TRUE(rule.candidates(quiet).empty()) << rule.name;
  }
  EXPECT_EQ(choose_advice(quiet).rule, "");
}

TEST(Advice, RanksThatShareCores) {
  TimeAccount a = computing();
  a.started.threads = 4;
  EXPECT_EQ(chosen(a), "shared-cores: --threads 1");
  a.started.threads = 1;
  a.started.ranks = a.started.local_processes = 8;
  EXPECT_EQ(chosen(a), "shared-cores: -n 2");
  a.started.local_cores = 7;
  spend(a, TimeUse::kExchange, 80);            // it is a consequence
  EXPECT_EQ(chosen(a), "shared-cores: -n 4");  // 7, 6 and 5 do not divide the batch of 64
  a.spec->train.mesh = "replica=2";            // a number of ranks that the run fixes
  EXPECT_EQ(chosen(a), "shared-cores: -n 2");
  a.spec->train.mesh.clear();
  a.hosts = 2;
  EXPECT_EQ(choose_advice(a).rule, "network");
}

TEST(Advice, ALateRank) {
  EXPECT_EQ(chosen(with_late_rank(0.5)), "late-rank: --share auto");
  TimeAccount shared = with_late_rank(0.5);
  shared.spec->data.share = "2,1";
  EXPECT_EQ(chosen(shared), "late-rank: --share auto");
  shared.spec->data.share = "auto";  // which servers do not have
  EXPECT_EQ(chosen(shared), "late-rank: starling doctor");
  TimeAccount synced = with_late_rank(0.5);
  synced.spec->model.batch_norm =
      BatchNorm::kSync;  // which --share auto cannot measure, and servers do not have
  EXPECT_EQ(chosen(synced), "late-rank: starling doctor");
  EXPECT_NE(choose_advice(with_late_rank(0.5)).advice.why.find("rank 1 on node-b, which needs 3.0 times"),
            std::string::npos);
  EXPECT_EQ(chosen(with_late_rank(0.05)), "computation: --precision bf16");
  TimeAccount hosts = with_late_rank(0.5);
  hosts.hosts = 2;
  EXPECT_EQ(chosen(hosts), "late-rank: ssh node-b starling doctor");
  EXPECT_NE(choose_advice(hosts).advice.why.find("or give it fewer samples by --share auto."),
            std::string::npos);
  hosts.late->host = "-oProxyCommand=touch x";
  EXPECT_EQ(chosen(hosts), "late-rank: --share auto");
  hosts.late->host = "a; touch x";
  EXPECT_EQ(chosen(hosts), "late-rank: ssh 'a; touch x' starling doctor");
  TimeAccount bounded = with_late_rank(0.5);
  use_exchange(bounded, "parameter-server");
  bounded.spec->exchange.staleness = "4";
  EXPECT_EQ(chosen(bounded), "late-rank: --exchange parameter-server --staleness inf");
  TimeAccount backup = with_late_rank(0.5);
  use_exchange(backup, "parameter-server");
  backup.spec->exchange.backup = 1;  // needs a staleness of 0
  EXPECT_EQ(chosen(backup), "late-rank: --exchange downpour");
  TimeAccount bf16 = with_late_rank(0.5);
  bf16.spec->train.precision = Precision::kBf16;  // servers train in fp32 or fp64
  EXPECT_EQ(chosen(bf16), "late-rank: --share auto");
  bf16.spec->data.share = "auto";
  EXPECT_EQ(chosen(bf16), "late-rank: starling doctor");
  TimeAccount idle = with_late_rank(0.5);
  idle.late->slowness = 0;
  EXPECT_EQ(choose_advice(idle).advice.why.find("times"), std::string::npos);
  TimeAccount data = with_late_rank(0.5);
  data.late->by_data = true;
  data.spec->data.workers = 3;
  EXPECT_EQ(chosen(data), "late-rank: --set data.workers=6");
  TimeAccount stages = with_late_rank(0.5);
  stages.spec->train.mesh = "stage=2";
  EXPECT_EQ(chosen(stages), "late-rank: --schedule interleaved --micro-batches 16");
}

TEST(Advice, IdleStages) {
  TimeAccount a = computing();
  a.spec->train.mesh = "stage=2";
  a.statistics = {{"stages", 2}, {"bubble_mean", 0.4}, {"bubble_planned", 0.3}};
  a.spec->pipeline.micro_batches = 2;
  spend(a, TimeUse::kExchange, 45);
  EXPECT_EQ(chosen(a), "pipeline-bubble: --micro-batches 4");
  a.spec->train.global_batch = 2;  // has no 4 micro-batches
  EXPECT_EQ(chosen(a), "pipeline-bubble: --schedule interleaved");
  a.spec->train.global_batch = 64;
  a.statistics["bubble_mean"] = 0.1;
  EXPECT_EQ(chosen(a), "exchange: --global-batch 128");
}

TEST(Advice, ASlowNetwork) {
  EXPECT_EQ(chosen(over_network(30)), "network: --codec int8");
  EXPECT_EQ(chosen(over_network(5)), "computation: --precision bf16");
  EXPECT_EQ(chosen(over_network(30, 1000)), "network: --exchange local-sgd --every 8");  // latency
  TimeAccount coded = over_network(30);
  coded.spec->exchange.codec = "1bit";
  EXPECT_EQ(chosen(coded), "network: --exchange local-sgd --every 8");
  TimeAccount rounds = over_network(30);
  use_exchange(rounds, "local-sgd");
  EXPECT_EQ(chosen(rounds), "network: --every 16");
  rounds.spec->exchange.rounds = 8;
  use_exchange(rounds, "parallel-sgd");
  EXPECT_EQ(chosen(rounds), "network: --rounds 4");
  TimeAccount fp64 = over_network(30);
  fp64.spec->train.precision = Precision::kFp64;  // codecs compress fp32 values
  EXPECT_EQ(chosen(fp64), "network: --exchange local-sgd --every 8");
  fp64.spec->model.batch_norm = BatchNorm::kSync;  // every step, all ranks together
  EXPECT_EQ(chosen(fp64), "network: --global-batch 128");
  TimeAccount sharded = over_network(30);
  sharded.spec->train.shard = Shard::kParameters;
  EXPECT_EQ(chosen(sharded), "network: --global-batch 128");
  sharded.spec->train.shard = Shard::kGradients;
  EXPECT_EQ(chosen(sharded), "network: --codec int8");
  sharded.spec->exchange.codec = "int8";
  EXPECT_EQ(chosen(sharded), "network: --global-batch 128");
  TimeAccount few_bytes = over_network(30, 1000);
  few_bytes.spec->train.shard = Shard::kOptimizer;
  EXPECT_EQ(chosen(few_bytes), "network: --global-batch 128");
  TimeAccount unknown = over_network(30);
  unknown.spec.reset();
  EXPECT_EQ(chosen(unknown), "network: --codec int8");
}

TEST(Advice, BytesOfAStepAreThoseOfTheStartThatReportedThem) {
  TimeAccount a = over_network(30, 100e3);
  a.steps = 100'000;  // of many starts
  EXPECT_DOUBLE_EQ(a.bytes_per_rank_and_step(), 100e3);
  EXPECT_EQ(chosen(a), "network: --codec int8");
  a.statistics_steps = a.statistics_ranks = int64_t{1} << 62;
  EXPECT_GT(a.bytes_per_rank_and_step(), 0);
  a.statistics_steps = 0;
  EXPECT_EQ(a.bytes_per_rank_and_step(), 0);
}

TEST(Advice, AnEmulatedLinkCountsAsANetwork) {
  TimeAccount a = over_network(30);
  a.hosts = 1;
  EXPECT_EQ(chosen(a), "exchange: --global-batch 128");
  a.spec->train.emulate = "bandwidth=20mbit";
  EXPECT_EQ(chosen(a), "network: --codec int8");
}

TEST(Advice, ASlowServer) {
  TimeAccount a = over_network(30);
  use_exchange(a, "parameter-server");
  a.phases = {{"gradients", 10}, {"parameters", 20}};
  EXPECT_EQ(chosen(a), "network: --pull-codec bf16");
  a.phases["gradients"] = 25;
  EXPECT_EQ(chosen(a), "network: --codec int8");
  a.phases_known = false;  // neither direction is known to be the larger one
  EXPECT_EQ(chosen(a), "network: --codec int8 --pull-codec bf16");
  EXPECT_EQ(choose_advice(a).advice.why.find("most of it"), std::string::npos);
  a.phases_known = true;
  a.spec->exchange.codec = "int8";
  EXPECT_EQ(chosen(a), "network: --exchange local-sgd --every 8");
}

TEST(Advice, ASlowExchangeWithinAHost) {
  TimeAccount a = computing();
  spend(a, TimeUse::kExchange, 15);
  EXPECT_EQ(choose_advice(a).rule, "computation");
  spend(a, TimeUse::kExchange, 15);
  EXPECT_EQ(chosen(a), "exchange: --global-batch 128");
}

TEST(Advice, SlowData) {
  TimeAccount a = computing();
  spend(a, TimeUse::kData, 40);
  a.spec->data.workers = 2;
  EXPECT_EQ(chosen(a), "data: --set data.workers=4");
  a.spec->data.source = "images:pictures";  // no core is left for more threads
  EXPECT_EQ(chosen(a), "data: starling data serve --data images:pictures");
  a.spec->data.source = "images:my pictures";
  EXPECT_EQ(chosen(a), "data: starling data serve --data 'images:my pictures'");
  a.started.local_cores = 64;
  EXPECT_EQ(chosen(a), "data: --set data.workers=4");
}

TEST(Advice, ASlowEvaluation) {
  TimeAccount a = computing();
  spend(a, TimeUse::kEvaluation, 50);
  EXPECT_EQ(chosen(a), "evaluation: --set data.test_samples=50");  // 2.5 s of 52.5 s
  a.test_samples = 0;                                              // unknown
  EXPECT_EQ(choose_advice(a).rule, "computation");
}

TEST(Advice, ManyCheckpoints) {
  TimeAccount a = computing();
  spend(a, TimeUse::kCheckpoints, 40);
  a.longest_start_s = 601;
  EXPECT_EQ(chosen(a), "checkpoints: --set checkpoint.minutes=40");
  a.longest_start_s = 599;  // no checkpoint was written because of the time
  EXPECT_EQ(choose_advice(a).rule, "computation");
  a.spec->checkpoint.every = 10;
  EXPECT_EQ(chosen(a), "checkpoints: --set checkpoint.every=40");
  a.longest_start_s = 601;
  a.spec->checkpoint.every = 0;
  a.spec->checkpoint.minutes = 0;
  EXPECT_EQ(choose_advice(a).rule, "computation");
  a.spec.reset();  // the intervals are unknown
  EXPECT_NE(choose_advice(a).rule, "checkpoints");
}

TEST(Advice, LostRanks) {
  TimeAccount a = computing();
  a.spec->run.dir = "runs/x";
  spend(a, TimeUse::kRecovery, 60);
  EXPECT_EQ(chosen(a), "lost-ranks: starling doctor --recorder runs/x");
  a.spec->run.dir = "it's; touch x";
  EXPECT_EQ(chosen(a), "lost-ranks: starling doctor --recorder 'it'\\''s; touch x'");
  a.spec->run.dir = "-x";
  EXPECT_EQ(chosen(a), "lost-ranks: starling doctor --recorder ./-x");
}

TEST(Advice, OneProcessThatIsFaster) {
  TimeAccount a = computing();
  a.one_process_s = 40;
  EXPECT_EQ(chosen(a), "one-process: -n 1");
  a.one_process_s = 180;
  EXPECT_EQ(choose_advice(a).rule, "computation");
}

TEST(Advice, AShortRun) {
  TimeAccount a = computing();
  spend(a, TimeUse::kStartup, 40);
  spend(a, TimeUse::kEnding, 30);
  EXPECT_EQ(chosen(a), "short-run: --steps 1000");
}

TEST(Advice, ComputationAlone) {
  TimeAccount a = computing();
  EXPECT_EQ(chosen(a), "computation: --precision bf16");
  a.started.local_cores = 8;
  EXPECT_EQ(chosen(a), "computation: -n 8");
  a.started.local_cores = 2;
  a.spec->train.precision = Precision::kBf16;
  EXPECT_EQ(chosen(a), "computation: --hosts HOST,HOST");
}

// Accounts for which the rules apply, over the configuration `spec`.
std::vector<TimeAccount> accounts_of(const RunSpec& spec) {
  TimeAccount late = with_late_rank(0.5), server = over_network(30), slow = over_network(30, 1000);
  server.phases = {{"gradients", 1}, {"parameters", 2}};
  TimeAccount host = computing(), shares = computing(), many = computing(), idle = computing();
  spend(host, TimeUse::kExchange, 30);
  shares.started.threads = 4;
  many.started.ranks = many.started.local_processes = 8;
  idle.statistics = {{"stages", 2}, {"bubble_mean", 0.4}};
  TimeAccount rest = computing();
  rest.one_process_s = 40;
  rest.longest_start_s = 1000;
  for (const TimeUse use :
       {TimeUse::kData, TimeUse::kEvaluation, TimeUse::kCheckpoints, TimeUse::kRecovery, TimeUse::kStartup})
    rest.seconds[static_cast<int>(use)] = 60;
  TimeAccount data = late;
  data.late->by_data = true;
  TimeAccount unknown = server;
  unknown.phases_known = false;
  std::vector<TimeAccount> out = {late, data, server, unknown, slow, host, shares, many, idle, rest};
  for (TimeAccount& a : out) {
    a.spec = spec;
    a.started.ranks = std::max(a.started.ranks, spec.train.ranks);
    a.exchange = exchange_traits(spec);
  }
  return out;
}

// Returns why `starling train -c config.toml FLAGS` would refuse the flags of the advice, or "".
std::string refusal(const RunSpec& spec, const std::string& flags) {
  CLI::App app;
  ConfigFlags options;
  options.add_sources(app);
  options.add_flags(app);
  try {
    Config base;
    apply_toml(base, spec_to_toml(spec), "config.toml");
    app.parse(flags);
    const Config config = options.read_over(base);
    validate(config.spec, config.origins);
  } catch (const CLI::Error& error) {
    return error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Advice, NoRuleNamesFlagsThatTheRunRefuses) {
  int runs = 0, checked = 0;
  for (const ExchangeTraits& exchange : exchange_table()) {
    for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      for (const char* mesh : {"", "replica=2,stage=2", "replica=2,tensor=2"}) {
        if (!thorough() && *mesh != 0) continue;
        RunSpec spec;
        spec.train.ranks = 4;
        spec.exchange.name = exchange.name;
        spec.train.shard = shard;
        spec.train.mesh = mesh;
        if (!refusal(spec, "").empty()) continue;  // no such run
        ++runs;
        for (const TimeAccount& account : accounts_of(spec)) {
          for (const AdviceRule& rule : advice_rules()) {
            const Advice advice = advice_of(rule, account);
            if (!advice.what.starts_with('-')) continue;
            ++checked;
            EXPECT_EQ(refusal(spec, advice.what), "") << fmt::format(
                "{}: {} for {} {} {}", rule.name, advice.what, exchange.name, mesh, static_cast<int>(shard));
          }
        }
      }
    }
  }
  EXPECT_GE(runs, thorough() ? 15 : 8);
  EXPECT_GE(checked, 10 * runs);
}

TEST(AcceptsFlags, FlagsThatDoNotExistOrDoNotFitAreRefused) {
  RunSpec spec;
  spec.train.ranks = 2;
  EXPECT_TRUE(accepts_flags(spec, "-n 4 --set data.workers=2"));
  EXPECT_TRUE(accepts_flags(spec, "--exchange parameter-server --staleness inf"));
  for (const char* flags : {"-n 3", "-n", "--no-such-flag 1", "--set no.key=1", "--set data.workers=0",
                            "--codec none --staleness inf", "--micro-batches 4"})
    EXPECT_FALSE(accepts_flags(spec, flags)) << flags;
}

TEST(Advice, TheLargestShareComesFirst) {
  TimeAccount a = with_late_rank(0.3);
  spend(a, TimeUse::kEvaluation, 35);
  EXPECT_EQ(choose_advice(a).rule, "evaluation");
  spend(a, TimeUse::kData, 34);
  EXPECT_EQ(choose_advice(a).rule, "evaluation");
  spend(a, TimeUse::kEvaluation, -10);
  EXPECT_EQ(choose_advice(a).rule, "data");
}

}  // namespace
}  // namespace starling
