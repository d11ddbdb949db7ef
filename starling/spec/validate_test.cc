#include "starling/spec/validate.h"

#include <gmock/gmock.h>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string error_of(const std::vector<std::string>& assignments) {
  Config config;
  for (const std::string& assignment : assignments) apply_set(config, assignment);
  try {
    validate(config.spec);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Validate, PassesTheDefaultsAndEachModel) {
  EXPECT_THAT(validate(RunSpec{}), IsEmpty());
  EXPECT_EQ(error_of({"model.name=mlp"}), "");
  EXPECT_EQ(error_of({"model.name=resnet50", "data.source=images:pictures.tar.gz"}), "");
  EXPECT_EQ(error_of({"model.name=gpt", "data.source=text:input.txt"}), "");
}

TEST(Validate, BatchIsSharedEqually) {
  EXPECT_EQ(error_of({"train.ranks=3"}),
            "train.global_batch: train.global_batch = 64 cannot be shared equally by train.ranks = 3: use a "
            "batch of "
            "63 or 66");
  EXPECT_THAT(error_of({"train.ranks=3", "train.global_batch=2"}), HasSubstr("use a batch of 3"));
  EXPECT_EQ(error_of({"train.threads_mode=batch", "train.threads=4"}), "");
  EXPECT_EQ(error_of({"train.threads_mode=batch", "train.threads=3"}),
            "train.threads: train.threads_mode = \"batch\" gives each thread an equal part, but "
            "train.threads = 3 does "
            "not divide the 64 samples of a rank: use a train.global_batch that is a multiple of 3");
  EXPECT_EQ(error_of({"train.threads=3"}), "");
  EXPECT_THAT(error_of({"data.samples=4", "train.ranks=8"}),
              HasSubstr("train.ranks = 8 is more than data.samples = 4"));
}

TEST(Validate, PlacesTheErrorWhereAKeyWasWritten) {
  Config config;
  apply_toml(config, "[train]\nranks = 3\n", "run.toml");
  try {
    validate(config.spec, config.origins);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "run.toml:2:9");
  }
  apply_flag(config, *find_entry("train.global_batch"), "--global-batch", "65");
  try {
    validate(config.spec, config.origins);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "--global-batch");
  }
}

TEST(Validate, RunHasALength) {
  EXPECT_THAT(error_of({"train.epochs=0"}), HasSubstr("give --epochs or --steps"));
  EXPECT_EQ(error_of({"train.epochs=0", "train.steps=5"}), "");
  EXPECT_THAT(error_of({"train.steps=5", "schedule.warmup_steps=6"}), HasSubstr("shorten the warm-up"));
}

TEST(Validate, ModelsFitTogether) {
  EXPECT_THAT(error_of({"model.name=gpt", "data.source=grammar", "model.heads=5"}),
              HasSubstr("model.width = 384 cannot be split into model.heads = 5: use a width of 385"));
  EXPECT_THAT(error_of({"model.name=mlp", "model.widths=[784]"}),
              HasSubstr("model.widths = [784] needs at least"));
  EXPECT_THAT(error_of({"model.name=mlp", "model.classes=7"}),
              HasSubstr("ends with 10, but model.classes = 7"));
}

TEST(Validate, SourcesAreKnownAndFitTheModel) {
  EXPECT_THAT(error_of({"data.source=digit"}),
              HasSubstr("data.source = \"digit\" is unknown: did you mean \"digits\"?"));
  EXPECT_THAT(error_of({"data.source=idx"}), HasSubstr("lacks the path: write idx:PATH"));
  EXPECT_THAT(error_of({"data.source=digits:7"}), HasSubstr("takes no path"));
  EXPECT_THAT(error_of({"model.name=gpt"}),
              HasSubstr("learns from text, and data.source = \"digits\" is pictures"));
  EXPECT_THAT(error_of({"data.source=grammar"}), HasSubstr("learns from pictures"));
  EXPECT_THAT(error_of({"data.test_source=grammar"}), HasSubstr("of another kind"));
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=test"}), "");
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=digits"}), "");
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=images:test.tar"}), "");
  EXPECT_THAT(error_of({"data.test_source=test"}), HasSubstr("\"test\" is unknown"));  // digits have no path
}

TEST(Validate, SchedulesAreComplete) {
  EXPECT_THAT(error_of({"schedule.name=step"}), HasSubstr("needs schedule.milestones"));
  EXPECT_THAT(error_of({"schedule.name=step", "schedule.milestones=[2,1]"}),
              HasSubstr("[2.0, 1.0] must rise"));
  EXPECT_THAT(error_of({"schedule.name=cosine", "schedule.min_lr=1"}), HasSubstr("above optimizer.lr"));
  EXPECT_THAT(error_of({"train.save=weights.pt"}), HasSubstr("must end in .safetensors"));
  EXPECT_EQ(error_of({"train.save=weights.safetensors.index.json"}), "");
}

TEST(Validate, MoreRanksThanCoresIsAWarning) {
  RunSpec spec;
  spec.train.ranks = 4;
  EXPECT_THAT(validate(spec, {}, 2), ElementsAre(HasSubstr("more than the 2 cores")));
  EXPECT_THAT(validate(spec, {}, 4), IsEmpty());
  EXPECT_THAT(validate(spec, {}, 0), IsEmpty());
}

TEST(Validate, CodecsHaveAMeaningForTheExchange) {
  EXPECT_EQ(error_of({"exchange.name=downpour", "exchange.codec=int8", "exchange.pull_codec=bf16"}), "");
  EXPECT_EQ(error_of({"exchange.name=local-sgd", "exchange.codec=1bit"}), "");
  EXPECT_THAT(error_of({"exchange.name=gossip", "exchange.codec=int8"}), HasSubstr("not with \"gossip\""));
  EXPECT_THAT(error_of({"exchange.pull_codec=int8"}), HasSubstr("\"all-reduce\" has none"));
  EXPECT_THAT(error_of({"exchange.codec=int8", "train.precision=fp64"}), HasSubstr("use --precision fp32"));
}

TEST(Validate, ActivationsTravelBetweenStages) {
  EXPECT_EQ(error_of({"pipeline.activations=int8", "train.mesh=stage=2", "train.ranks=2"}), "");
  EXPECT_THAT(error_of({"pipeline.activations=int8"}), HasSubstr("give --mesh stage=S"));
}

TEST(Validate, ShardingBelongsToAllReduce) {
  EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=2"}), "");
  EXPECT_THAT(error_of({"train.shard=optimizer", "exchange.name=gossip"}),
              HasSubstr("leave out --exchange gossip"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "exchange.codec=int8"}), HasSubstr("--codec int8"));
  EXPECT_THAT(error_of({"train.shard=parameters", "train.ranks=2", "train.mesh=stage=2"}),
              HasSubstr("each stage of this pipeline has one"));
  EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=4", "train.mesh=stage=2"}), "");
  EXPECT_THAT(error_of({"train.shard=parameters", "train.ranks=4", "train.mesh=stage=2"}),
              HasSubstr("use --shard gradients"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "train.threads_mode=batch", "train.threads=2"}),
              HasSubstr("--threads-mode op"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "optimizer.share=divided"}),
              HasSubstr("leave out optimizer.share"));
}

TEST(Validate, ReplicasOfAPipelineExchangeWhateverReplicasDo) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.ranks=4", "train.mesh=replica=2,stage=2"});
    return error_of(more);
  };
  for (const char* name : {"all-reduce", "central", "local-sgd", "parallel-sgd", "admm", "gossip",
                           "parameter-server", "downpour"})
    EXPECT_EQ(with({std::string("exchange.name=") + name}), "") << name;
  EXPECT_EQ(with({"exchange.codec=int8"}), "");
  EXPECT_THAT(with({"exchange.name=parameter-server", "exchange.backup=1"}), HasSubstr("leave out --backup"));
  EXPECT_THAT(with({"train.global_batch=63"}), HasSubstr("cannot be shared equally by 2 replicas"));
  EXPECT_THAT(with({"train.global_batch=36"}),
              HasSubstr("the 18 samples of a step of a replica cannot be cut into 8 micro-batches"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("--threads-mode op"));
  EXPECT_EQ(with({"train.precision=bf16", "pipeline.activations=int8"}), "");
  EXPECT_THAT(with({"train.precision=bf16", "exchange.name=downpour"}),
              HasSubstr("servers hold fp32 or fp64"));
}

TEST(Validate, OneReplicaOfAPipelineExchangesNothing) {
  EXPECT_THAT(error_of({"train.ranks=2", "train.mesh=stage=2", "exchange.name=gossip"}),
              HasSubstr("this pipeline has one replica, so nothing is exchanged"));
  EXPECT_EQ(error_of({"train.ranks=2", "train.mesh=stage=2", "exchange.name=downpour"}), "");
  EXPECT_THAT(error_of({"train.threads_mode=layer", "train.threads=2", "exchange.name=downpour"}),
              HasSubstr("has one replica"));
}

TEST(Validate, ATensorAxisHasWhatItCannotDo) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.ranks=4", "train.mesh=replica=2,tensor=2"});
    return error_of(more);
  };
  for (const char* name : {"all-reduce", "central", "local-sgd", "parallel-sgd", "admm", "gossip"})
    EXPECT_EQ(with({std::string("exchange.name=") + name}), "") << name;
  EXPECT_EQ(with({"optimizer.clip_norm=1"}), "");
  EXPECT_EQ(with({"train.shard=parameters"}), "");
  EXPECT_THAT(
      with({"model.name=gpt", "data.source=grammar", "model.width=30", "model.heads=3"}),
      ::testing::AllOf(HasSubstr("model.heads = 3"), HasSubstr("tensor=2"), HasSubstr("use 4 heads")));
  EXPECT_THAT(with({"model.name=alexnet", "model.dropout=0.5"}), HasSubstr("model.dropout"));
  EXPECT_THAT(with({"exchange.name=downpour"}), HasSubstr("another --exchange"));
  EXPECT_THAT(with({"exchange.codec=int8"}), HasSubstr("leave out --codec"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("--threads-mode op"));
}

TEST(Validate, HybridIsSynchronousOverAllRanks) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.ranks=2", "train.hybrid=auto"});
    return error_of(more);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"optimizer.clip_norm=1", "model.batch_norm=sync"}), "");
  EXPECT_THAT(with({"train.mesh=stage=2"}), HasSubstr("leave out --mesh"));
  EXPECT_THAT(with({"exchange.name=gossip"}), HasSubstr("leave out --exchange"));
  EXPECT_THAT(with({"exchange.codec=bf16"}), HasSubstr("leave out --codec"));
  EXPECT_THAT(with({"train.shard=gradients"}), HasSubstr("leave out --shard"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("--threads-mode op"));
}

}  // namespace
}  // namespace starling
