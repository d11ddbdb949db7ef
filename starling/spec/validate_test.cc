#include "starling/spec/validate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/base/error.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/recipes.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

std::string error_of(const std::vector<std::string>& assignments) {
  Config config;
  try {
    for (const std::string& assignment : assignments) apply_set(config, assignment);
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
  EXPECT_EQ(error_of({"model.name=llama", "data.source=text:input.txt", "model.kv_heads=2"}), "");
}

TEST(Validate, BatchIsSharedEqually) {
  EXPECT_EQ(error_of({"train.ranks=3"}),
            "train.global_batch: train.global_batch = 64 cannot be shared equally by train.ranks = 3: use "
            "a batch of 63 or 66");
  EXPECT_THAT(error_of({"train.ranks=3", "train.global_batch=2"}), HasSubstr("use a batch of 3"));
  EXPECT_EQ(error_of({"train.threads_mode=batch", "train.threads=4"}), "");
  EXPECT_EQ(error_of({"train.threads_mode=batch", "train.threads=3"}),
            "train.threads: train.threads_mode = \"batch\" gives each thread an equal part, but the 64 "
            "samples of a rank are not a multiple of train.threads = 3: use a train.global_batch that is a "
            "multiple of 3");
  EXPECT_EQ(error_of({"train.threads=3"}), "");
  EXPECT_THAT(error_of({"data.samples=4", "train.ranks=8"}),
              HasSubstr("train.ranks = 8 is more than data.samples = 4"));
}

// A batch that a recipe has chosen is named with the recipe, because the user did not write it.
TEST(Validate, SamplesFillABatch) {
  Config config;
  apply_set(config, "model.name=resnet18");
  apply_set(config, "data.samples=100");
  apply_recipes(config);
  const auto message = [&config] {
    try {
      validate(config.spec, config.origins);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(),
            "--set: data.samples = 100 is less than train.global_batch = 128 (recipe of resnet18): use more "
            "samples or a smaller batch");
  apply_flag(config, *find_entry("train.global_batch"), "--global-batch", "101");
  EXPECT_THAT(message(), HasSubstr("train.global_batch = 101 (--global-batch)"));
  apply_flag(config, *find_entry("train.global_batch"), "--global-batch", "100");
  EXPECT_EQ(message(), "");
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
  EXPECT_EQ(error_of({"train.steps=5", "schedule.warmup_steps=6"}), "");  // a warning (recipes_test.cc)
}

TEST(Validate, ModelsFitTogether) {
  EXPECT_THAT(error_of({"model.name=gpt", "data.source=grammar", "model.heads=5"}),
              HasSubstr("model.width = 384 is not a multiple of model.heads = 5: use a width of 385"));
  const auto llama = [](const std::string& assignment) {
    return error_of({"model.name=llama", "data.source=grammar", assignment});
  };
  EXPECT_THAT(llama("model.heads=5"), HasSubstr("model.width = 384 is not a multiple of model.heads = 5"));
  EXPECT_THAT(llama("model.kv_heads=4"), HasSubstr("model.kv_heads = 4 does not divide model.heads = 6"));
  EXPECT_THAT(llama("model.heads=128"), HasSubstr("a head of 3 numbers"));
  EXPECT_THAT(llama("model.dropout=0.1"), HasSubstr("llama has no dropout"));
  EXPECT_THAT(llama("data.partition=by-label"), HasSubstr("text has no classes"));
  EXPECT_THAT(error_of({"model.name=llama"}), HasSubstr("trains on text, but data.source = \"digits\""));
  EXPECT_THAT(error_of({"model.name=mlp", "model.widths=[784]"}),
              HasSubstr("model.widths = [784] needs at least"));
  EXPECT_THAT(error_of({"model.name=mlp", "model.classes=7"}),
              HasSubstr("ends with 10, but model.classes = 7"));
}

TEST(Validate, SourcesAreKnownAndFitTheModel) {
  EXPECT_THAT(error_of({"data.source=digit"}),
              HasSubstr("data.source = \"digit\" is unknown: did you mean \"digits\"?"));
  EXPECT_THAT(error_of({"data.source=idx"}), HasSubstr("has no path: write idx:PATH"));
  EXPECT_THAT(error_of({"data.source=digits:7"}), HasSubstr("takes no path"));
  EXPECT_THAT(error_of({"model.name=gpt"}),
              HasSubstr("trains on text, but data.source = \"digits\" provides images"));
  EXPECT_THAT(error_of({"data.source=grammar"}), HasSubstr("trains on images"));
  EXPECT_THAT(error_of({"data.test_source=grammar"}), HasSubstr("of another kind"));
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=test"}), "");
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=digits"}), "");
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=idx:train", "data.test_source=images:test.tar"}), "");
  EXPECT_THAT(error_of({"data.test_source=test"}), HasSubstr("\"test\" is unknown"));  // digits have no path
  // Only the server knows whether it serves images, a text or tensors.
  EXPECT_EQ(error_of({"model.name=gpt", "data.source=served:127.0.0.1:7000"}), "");
  EXPECT_EQ(error_of({"model.name=mlp", "data.source=served:127.0.0.1:7000"}), "");
}

TEST(Validate, SchedulesAreComplete) {
  EXPECT_THAT(error_of({"schedule.name=step"}), HasSubstr("needs schedule.milestones"));
  EXPECT_THAT(error_of({"schedule.name=step", "schedule.milestones=[2,1]"}),
              HasSubstr("[2.0, 1.0] must be in ascending order"));
  EXPECT_THAT(error_of({"schedule.name=cosine", "schedule.min_lr=1"}), HasSubstr("above optimizer.lr"));
  EXPECT_THAT(error_of({"train.save=weights.txt"}), HasSubstr("must end in .safetensors, in .pt or .pth"));
  EXPECT_EQ(error_of({"train.save=weights.pt"}), "");
  EXPECT_EQ(error_of({"train.save=weights.pth"}), "");
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
  EXPECT_THAT(error_of({"exchange.name=gossip", "exchange.codec=int8"}),
              HasSubstr("does not apply to \"gossip\""));
  for (const char* codec : {"exchange.codec=qsgd", "exchange.codec=terngrad"}) {
    EXPECT_EQ(error_of({"exchange.name=downpour", codec}), "");
    EXPECT_EQ(error_of({"exchange.name=local-sgd", codec}), "");
  }
  for (const char* codec : {"exchange.codec=random-k:keep=0.2", "exchange.codec=signsgd",
                            "exchange.codec=dgc", "exchange.codec=dgc+int8:keep=0.01"})
    EXPECT_THAT(error_of({"exchange.name=parameter-server", codec}),
                HasSubstr("use another codec with servers"));
  EXPECT_EQ(error_of({"exchange.name=local-sgd", "exchange.codec=random-k"}), "");
  EXPECT_EQ(error_of({"exchange.name=parameter-server", "exchange.codec=prune+int8:keep=0.1"}), "");
  EXPECT_THAT(error_of({"exchange.name=local-sgd", "exchange.codec=signsgd"}),
              HasSubstr("--codec signsgd does not apply to \"local-sgd\", because it encodes gradients"));
  EXPECT_THAT(error_of({"exchange.pull_codec=int8"}), HasSubstr("\"all-reduce\" has no servers"));
  EXPECT_THAT(error_of({"exchange.codec=int8", "train.precision=fp64"}), HasSubstr("use --precision fp32"));
}

TEST(Validate, ActivationsTravelBetweenStages) {
  EXPECT_EQ(error_of({"pipeline.activations=int8", "train.mesh=stage=2", "train.ranks=2"}), "");
  EXPECT_THAT(error_of({"pipeline.activations=int8"}), HasSubstr("give --mesh stage=S"));
  EXPECT_THAT(error_of({"pipeline.activations=calibrated-int8"}), HasSubstr("give --mesh stage=S"));
  EXPECT_EQ(error_of({"pipeline.activations=calibrated-int8", "train.threads_mode=layer", "train.threads=2"}),
            "");
}

TEST(Validate, SomeStepAfterACalibrationIsCompressed) {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {"pipeline.activations=calibrated-int8", "train.mesh=stage=2", "train.ranks=2"});
    return error_of(settings);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"pipeline.calibration_steps=9", "pipeline.recalibrate_every=10"}), "");
  EXPECT_EQ(with({"pipeline.calibration_steps=900", "pipeline.recalibrate_every=0"}), "");
  EXPECT_THAT(with({"pipeline.calibration_steps=10", "pipeline.recalibrate_every=10"}),
              HasSubstr("10 calibration steps in every 10 steps leave no step"));
  EXPECT_THAT(with({"pipeline.calibration_steps=0"}), HasSubstr("at least 1"));
  EXPECT_THAT(with({"pipeline.saturation_limit=101"}), HasSubstr("at least 0 and at most 100"));
  EXPECT_THAT(with({"pipeline.percentile=0"}), HasSubstr("above 0 and at most 100"));
  EXPECT_THAT(with({"pipeline.percentile=100.5"}), HasSubstr("above 0 and at most 100"));
}

TEST(Validate, ShardingBelongsToAllReduce) {
  EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=2"}), "");
  EXPECT_THAT(error_of({"train.shard=optimizer", "exchange.name=gossip"}),
              HasSubstr("leave out --exchange gossip"));
  EXPECT_THAT(error_of({"train.shard=parameters", "train.ranks=2", "train.mesh=stage=2"}),
              HasSubstr("each stage of this pipeline has one replica"));
  EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=4", "train.mesh=stage=2"}), "");
  EXPECT_THAT(error_of({"train.shard=parameters", "train.ranks=4", "train.mesh=stage=2"}),
              HasSubstr("use --shard gradients"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "train.threads_mode=batch", "train.threads=2"}),
              HasSubstr("--threads-mode op"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "optimizer.share=sharded"}),
              HasSubstr("leave out optimizer.share"));
}

// Every codec encodes the gradients of ZeRO 1 and 2.
TEST(Validate, CodecsWorkWithShardsOfStatesAndGradients) {
  for (const CodecTraits& codec : codec_table()) {
    const std::string word = "exchange.codec=" + std::string(codec.name);
    EXPECT_EQ(error_of({"train.shard=optimizer", "train.ranks=2", word}), "") << word;
    EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=2", word}), "") << word;
  }
  const std::string int8 = "exchange.codec=int8";
  EXPECT_EQ(error_of({"train.shard=gradients", "train.ranks=4", "train.mesh=replica=2,stage=2", int8}), "");
  EXPECT_EQ(error_of({"train.shard=optimizer", "train.accumulate=4", int8}), "");
  EXPECT_EQ(error_of({"train.shard=parameters", "train.accumulate=4"}), "");
  EXPECT_EQ(error_of({"exchange.codec=prune:correction=on"}), "");
  EXPECT_THAT(error_of({"train.shard=parameters", int8}),
              HasSubstr("leave out --codec int8, or use --shard gradients"));
  EXPECT_THAT(error_of({"train.shard=gradients", "train.accumulate=4", int8}),
              HasSubstr("use --shard optimizer, or leave out --accumulate"));
  for (const char* codec : {"exchange.codec=prune:correction=on", "exchange.codec=signsgd:correction=on"})
    EXPECT_THAT(error_of({"train.shard=optimizer", codec}),
                HasSubstr("with train.shard the momentum does not come before the codec"));
  EXPECT_THAT(error_of({"train.shard=optimizer", "train.ranks=4", "train.mesh=replica=2,tensor=2",
                        "model.name=gpt", "data.source=grammar", int8}),
              HasSubstr("leave out --codec"));
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
              HasSubstr("the 18 samples of a step of a replica cannot be divided into 8 micro-batches"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("--threads-mode op"));
  EXPECT_EQ(with({"train.precision=bf16", "pipeline.activations=int8"}), "");
  EXPECT_THAT(with({"train.precision=bf16", "exchange.name=downpour"}), HasSubstr("trains in fp32 or fp64"));
}

TEST(Validate, OneReplicaOfAPipelineExchangesNothing) {
  EXPECT_THAT(error_of({"train.ranks=2", "train.mesh=stage=2", "exchange.name=gossip"}),
              HasSubstr("this pipeline has one replica, so replicas exchange nothing"));
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
  EXPECT_THAT(with({"model.name=llama", "data.source=grammar", "model.kv_heads=3"}),
              ::testing::AllOf(HasSubstr("model.kv_heads = 3"), HasSubstr("tensor=2"),
                               HasSubstr("use 2 or 6 key and value heads")));
  EXPECT_EQ(with({"model.name=llama", "data.source=grammar", "model.kv_heads=2"}), "");
  EXPECT_THAT(with({"model.name=alexnet", "model.dropout=0.5"}), HasSubstr("model.dropout"));
  for (const char* name : {"parameter-server", "downpour"})
    EXPECT_EQ(with({std::string("exchange.name=") + name}), "") << name;
  EXPECT_EQ(error_of({"train.ranks=2", "train.mesh=tensor=2", "exchange.name=downpour"}), "");
  EXPECT_THAT(with({"exchange.name=parameter-server", "exchange.backup=1"}), HasSubstr("leave out --backup"));
  EXPECT_THAT(with({"exchange.name=downpour", "exchange.pull_codec=bf16"}),
              HasSubstr("leave out --pull-codec"));
  EXPECT_THAT(error_of({"train.ranks=4", "train.mesh=stage=2,tensor=2", "exchange.name=downpour"}),
              HasSubstr("leave out one of the axes"));
  EXPECT_THAT(with({"exchange.codec=int8"}), HasSubstr("leave out --codec"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("--threads-mode op"));
}

TEST(Validate, SharesOfABatch) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"train.ranks=2", "data.share=2,1"});
    return error_of(more);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"train.global_batch=63"}), "");  // no multiple of the ranks
  EXPECT_EQ(with({"exchange.name=central", "model.batch_norm=sync"}), "");
  EXPECT_EQ(with({"train.shard=parameters", "train.accumulate=4"}), "");
  EXPECT_EQ(with({"exchange.codec=int8"}), "");
  EXPECT_EQ(with({"train.threads_mode=batch", "train.threads=3"}), "");
  EXPECT_EQ(with({"train.on_failure=continue"}), "");
  for (const char* name : {"local-sgd", "parallel-sgd", "admm", "gossip", "parameter-server", "downpour"})
    EXPECT_THAT(
        with({std::string("exchange.name=") + name}),
        HasSubstr(fmt::format("does not apply to {}: leave out --share, or use --exchange all-reduce, "
                              "central on whole models",
                              name)));
  EXPECT_THAT(with({"train.mesh=stage=2"}), HasSubstr("does not apply to the stages of a pipeline"));
  EXPECT_THAT(with({"train.mesh=tensor=2"}), HasSubstr("does not apply to a tensor axis"));
  EXPECT_THAT(with({"train.hybrid=auto"}), HasSubstr("does not apply to a hybrid"));
  EXPECT_THAT(with({"data.partition=iid"}), HasSubstr("samples that belong to one rank only"));
  EXPECT_THAT(error_of({"train.ranks=3", "data.share=2,1"}),
              HasSubstr("data.share has 2 parts for 3 ranks: give one number for each"));
  EXPECT_THAT(
      with({"train.global_batch=6", "train.accumulate=3", "train.threads_mode=batch", "train.threads=2"}),
      HasSubstr("cannot be cut into 3 parts"));
  EXPECT_THAT(with({"train.global_batch=6", "train.threads_mode=batch", "train.threads=4"}),
              HasSubstr("each of the 2 ranks needs at least 4 samples of a step"));
  for (const char* text : {"2,", "2,-1", "2,x", "0,1", "inf,1", "1e9,1", "fast"})
    EXPECT_THAT(error_of({"train.ranks=2", std::string("data.share=") + text}),
                HasSubstr("is no division of a step's samples"))
        << text;
  EXPECT_EQ(error_of({"train.ranks=2", "data.share=auto"}), "");
  EXPECT_THAT(error_of({"train.ranks=2", "data.share=auto", "model.batch_norm=sync"}),
              HasSubstr("give a list, such as --share 2,1"));
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

// Returns the error for a configuration as it was typed, after its recipes, or "".
std::string error_of_typed(Config config) {
  apply_recipes(config);
  try {
    validate(config.spec, config.origins);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Returns the error for these flags, as a command line gives them.
std::string error_of_flags(const std::vector<std::pair<std::string, std::string>>& flags) {
  Config config;
  for (const auto& [flag, text] : flags) apply_flag(config, *find_flag(flag), flag, text);
  return error_of_typed(std::move(config));
}

// Returns the error for settings that are typed after --set.
std::string error_of_sets(const std::vector<std::string>& sets) {
  Config config;
  for (const std::string& set : sets) apply_set(config, set);
  return error_of_typed(std::move(config));
}

TEST(Validate, KeysOfGradientBucketsAreRefusedWhereThereAreNone) {
  const char* const keys[] = {"train.bucket_mb=4", "optimizer.share=replicated", "train.hash_every=5"};
  for (const char* key : keys) {
    EXPECT_EQ(error_of_sets({"train.ranks=2", key}), "");
    EXPECT_EQ(error_of_sets({"train.ranks=4", "train.mesh=stage=2", key}), "");
    EXPECT_THAT(error_of_sets({"train.ranks=2", "exchange.name=gossip", key}),
                HasSubstr("belongs to all-reduce, not to \"gossip\""));
  }
  EXPECT_EQ(error_of_sets({"train.ranks=2", "exchange.name=gossip", "train.hash_every=0"}), "");
  EXPECT_EQ(error_of_sets({"train.ranks=2", "exchange.name=gossip", "train.bucket_mb=8"}),
            "");  // the default
}

TEST(Validate, FlagsWithoutMeaningForTheExchangeAreRefused) {
  EXPECT_THAT(error_of_flags({{"--every", "16"}}),
              AllOf(StartsWith("--every: exchange.every belongs to local-sgd, "),
                    EndsWith(", not to \"all-reduce\": leave it out, or give another --exchange")));
  const std::pair<std::string, std::string> unread[] = {
      {"--combine", "best"}, {"--central", "master"}, {"--graph", "torus"},
      {"--servers", "2"},    {"--staleness", "3"},    {"--reduction-order", "arrival"},
      {"--backup", "1"},     {"--pull-codec", "fp16"}};
  for (const auto& flag : unread)
    EXPECT_THAT(error_of_flags({flag, {"-n", "2"}}), HasSubstr(flag.first + ": "));
  const char* const sets[] = {"exchange.rounds=2", "exchange.push_every=3", "exchange.fetch_every=3",
                              "exchange.worker_weights=[0.5,0.5]"};
  for (const char* set : sets)
    EXPECT_THAT(error_of_sets({"train.ranks=2", set}), HasSubstr("not to \"all-reduce\"")) << set;
  EXPECT_THAT(error_of_flags({{"--micro-batches", "4"}}),
              HasSubstr("--micro-batches: pipeline.micro_batches has an effect only in a pipeline"));
  EXPECT_THAT(error_of_flags({{"--schedule", "gpipe"}}), HasSubstr("--schedule: "));
  EXPECT_THAT(error_of_flags({{"--accumulate", "4"}, {"--mesh", "stage=2"}, {"-n", "2"}}),
              HasSubstr("--accumulate: a pipeline computes its batch in parts already: use --micro-batches"));
  EXPECT_THAT(
      error_of_flags({{"--accumulate", "9"}, {"--global-batch", "16"}, {"-n", "2"}}),
      HasSubstr("the 8 samples that a rank computes in a step cannot be cut into 9 parts: use at most 8"));
  EXPECT_EQ(error_of_flags({{"--accumulate", "8"}, {"--global-batch", "16"}, {"-n", "2"}}), "");
  EXPECT_EQ(error_of_flags({{"--every", "16"}, {"--exchange", "local-sgd"}}), "");
  EXPECT_EQ(error_of_flags({{"--micro-batches", "4"}, {"--mesh", "stage=2"}, {"-n", "2"}}), "");
}

TEST(Validate, RatesOfTensorsNeedWholeGradients) {
  for (const char* way : {"exchange.name=local-sgd", "exchange.name=gossip", "train.shard=parameters",
                          "train.mesh=tensor=2", "train.mesh=stage=2"}) {
    EXPECT_EQ(error_of_sets({"train.ranks=2", "optimizer.name=lars", way}), "") << way;
    EXPECT_EQ(error_of_sets({"train.ranks=2", "optimizer.exempt_vectors=true", way}), "") << way;
  }
  EXPECT_THAT(
      error_of_sets({"train.ranks=2", "optimizer.name=lamb", "exchange.name=parameter-server"}),
      HasSubstr("lamb does not work with parameter-server, whose servers see parts of tensors only: use "
                "one of all-reduce, local-sgd, "));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.name=lars", "exchange.name=central"}),
              HasSubstr("lars does not work with central"));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.name=lars", "train.hybrid=fc1"}),
              HasSubstr("lars does not work with --hybrid"));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.name=lars", "train.on_failure=continue"}),
              HasSubstr("use --on-failure stop"));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.weight_decay=0.1", "optimizer.exempt_vectors=true",
                             "exchange.name=central"}),
              HasSubstr("optimizer.exempt_vectors does not work with central"));
  const auto exempt = [](std::vector<std::string> sets) {
    sets.insert(sets.begin(),
                {"train.ranks=2", "optimizer.weight_decay=0.1", "optimizer.exempt_vectors=true"});
    return error_of_sets(sets);
  };
  EXPECT_EQ(exempt({"exchange.codec=prune"}), "");
  EXPECT_EQ(exempt({"train.bucket_mb=4"}), "");
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.name=lars", "optimizer.share=sharded"}),
              HasSubstr("--optimizer lars"));
  EXPECT_EQ(exempt({"train.on_failure=continue"}), "");
  EXPECT_EQ(exempt({"train.threads_mode=batch", "train.threads=2"}), "");
  EXPECT_EQ(exempt({"train.ranks=1", "train.threads_mode=layer", "train.threads=2"}), "");
  EXPECT_THAT(exempt({"train.hybrid=fc1"}),
              HasSubstr("optimizer.exempt_vectors does not work with --hybrid"));
}

TEST(Validate, AveragedWeightsAreTheMeanOfTheRanks) {
  for (const char* way :
       {"exchange.name=local-sgd", "exchange.name=gossip", "exchange.codec=int8", "train.shard=parameters",
        "train.mesh=tensor=2", "train.mesh=stage=2", "train.on_failure=continue", "optimizer.name=lamb"})
    EXPECT_EQ(error_of_sets({"train.ranks=2", "optimizer.ema_decay=0.999", way}), "") << way;
  for (const char* name :
       {"central", "easgd", "async-easgd", "parallel-sgd", "admm", "sgp", "parameter-server", "downpour"}) {
    EXPECT_THAT(
        error_of_sets({"train.ranks=2", "optimizer.ema_decay=0.999", fmt::format("exchange.name={}", name)}),
        HasSubstr(fmt::format("{} keeps no averaged weights: leave out optimizer.ema_decay, or use one of "
                              "these exchanges: all-reduce, local-sgd, gossip",
                              name)));
  }
  EXPECT_THAT(error_of_sets({"train.ranks=2", "optimizer.ema_decay=0.9", "train.hybrid=fc1"}),
              HasSubstr("optimizer.ema_decay does not work with --hybrid"));
  Config config;
  EXPECT_THROW(apply_set(config, "optimizer.ema_decay=1"), ConfigError);
}

TEST(Validate, GraphsOfGossipAndPush) {
  EXPECT_THAT(error_of_sets({"train.ranks=4", "exchange.name=gossip", "exchange.graph=one-peer"}),
              HasSubstr("gossip has no graph one-peer: use --graph exponential, or --exchange sgp"));
  for (const char* graph : {"exchange.graph=one-peer", "exchange.graph=torus"})
    EXPECT_EQ(error_of_sets({"train.ranks=4", "exchange.name=sgp", graph}), "");
}

TEST(Validate, WorkersThatMeetACenterHaveWholeModels) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"train.ranks=4", "exchange.name=async-easgd"};
    sets.insert(sets.end(), more.begin(), more.end());
    return error_of_sets(sets);
  };
  EXPECT_EQ(with({"exchange.every=4", "exchange.elastic=0.5", "exchange.servers=2", "optimizer.nesterov=true",
                  "optimizer.clip_norm=1", "optimizer.clip_value=1", "train.precision=bf16"}),
            "");
  EXPECT_EQ(with({"train.on_failure=continue"}), "");
  for (const char* axis : {"tensor", "stage"})
    EXPECT_THAT(
        with({fmt::format("train.mesh=replica=2,{}=2", axis)}),
        HasSubstr(fmt::format("use --exchange easgd, which is synchronous, or leave out the {} axis", axis)));
  EXPECT_THAT(with({"exchange.codec=int8"}), HasSubstr("not to \"async-easgd\": leave it out"));
  EXPECT_THAT(with({"exchange.pull_codec=int8"}), HasSubstr("not to \"async-easgd\": leave it out"));
  EXPECT_THAT(error_of({"exchange.name=async-easgd", "exchange.pull_codec=int8"}),
              HasSubstr("\"async-easgd\" has no use for rounded ones: leave it out"));
  EXPECT_THAT(with({"train.shard=optimizer"}), HasSubstr("leave out --exchange async-easgd"));
  EXPECT_THAT(with({"train.hybrid=auto"}), HasSubstr("leave out --exchange"));
  EXPECT_THAT(with({"optimizer.ema_decay=0.9"}), HasSubstr("async-easgd keeps no averaged weights"));
  EXPECT_THAT(with({"exchange.staleness=2"}), HasSubstr("exchange.staleness belongs to parameter-server"));
  EXPECT_THAT(with({"exchange.worker_weights=[1.0,1.0,1.0,1.0]"}),
              HasSubstr("belongs to parameter-server, downpour"));
  EXPECT_THAT(with({"train.threads_mode=hogwild"}), HasSubstr("so async-easgd gets no gradient of a step"));
}

TEST(Validate, AWarmStartNeedsSeveralReplicas) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"exchange.name=downpour", "exchange.warm_start=20"};
    sets.insert(sets.end(), more.begin(), more.end());
    return error_of_sets(sets);
  };
  EXPECT_EQ(
      with({"train.ranks=4", "optimizer.name=adagrad", "exchange.push_every=5", "exchange.fetch_every=5"}),
      "");
  EXPECT_EQ(with({"train.ranks=4", "train.mesh=replica=2,stage=2"}), "");
  EXPECT_THAT(with({"train.ranks=1"}), HasSubstr("exchange.warm_start has no effect with -n 1"));
  EXPECT_THAT(with({"train.ranks=2", "train.mesh=stage=2"}), HasSubstr("has no effect with --mesh stage=2"));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "exchange.name=parameter-server", "exchange.warm_start=20"}),
              HasSubstr("exchange.warm_start belongs to downpour"));
}

TEST(Validate, TeamsNeedSynchronousServersAndWholeModels) {
  const auto error = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"train.ranks=4", "exchange.name=parameter-server"};
    sets.insert(sets.end(), more.begin(), more.end());
    return error_of(sets);
  };
  EXPECT_EQ(error({"exchange.team=2"}), "");
  EXPECT_EQ(error({"exchange.team=4", "exchange.servers=2", "exchange.codec=int8"}), "");
  EXPECT_THAT(error({"exchange.team=3"}),
              HasSubstr("4 ranks cannot be divided into teams of 3: use a divisor of 4"));
  EXPECT_THAT(error({"exchange.team=2", "exchange.staleness=3"}), HasSubstr("needs --staleness 0, not 3"));
  EXPECT_THAT(error({"exchange.team=2", "exchange.backup=1"}), HasSubstr("leave out --backup"));
  EXPECT_THAT(error({"exchange.team=2", "train.mesh=replica=2,stage=2"}),
              HasSubstr("leave out --mesh or exchange.team"));
  EXPECT_THAT(error({"exchange.team=2", "train.on_failure=continue"}), HasSubstr("use --on-failure stop"));
}

TEST(Validate, AsynchronousPairsNeedABipartiteGraphAndWholeReplicas) {
  const auto error = [](const char* ranks, const char* graph, const std::vector<const char*>& more = {}) {
    std::vector<std::string> sets = {ranks, "train.global_batch=24", "exchange.name=ad-psgd", graph};
    sets.insert(sets.end(), more.begin(), more.end());
    return error_of_sets(sets);
  };
  for (const char* graph : {"exchange.graph=ring", "exchange.graph=torus"})
    EXPECT_EQ(error("train.ranks=8", graph), "") << graph;
  EXPECT_EQ(error("train.ranks=2", "exchange.graph=exponential"), "");
  EXPECT_THAT(
      error("train.ranks=3", "exchange.graph=ring"),
      HasSubstr("the graph ring of 3 ranks cannot be divided so: use an even number of ranks, such as "
                "-n 4, or another --exchange"));
  EXPECT_THAT(error("train.ranks=6", "exchange.graph=torus"),
              HasSubstr("the graph torus of 6 ranks cannot be divided so: use --graph ring"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=exponential"), HasSubstr("use --graph ring"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=one-peer"),
              HasSubstr("ad-psgd has no graph one-peer: use --graph ring, or --exchange sgp"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=ring", {"train.mesh=stage=2"}),
              HasSubstr("or leave out the stage axis"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=ring", {"train.mesh=tensor=2"}),
              HasSubstr("or leave out the tensor axis"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=ring", {"exchange.codec=int8"}),
              HasSubstr("not to \"ad-psgd\": leave it out"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=ring", {"train.on_failure=continue"}),
              HasSubstr("not with ad-psgd"));
  EXPECT_THAT(error("train.ranks=4", "exchange.graph=ring", {"train.shard=optimizer"}),
              HasSubstr("leave out --exchange ad-psgd"));
}

TEST(Validate, TheOuterStepOfLocalSgd) {
  EXPECT_EQ(
      error_of_sets({"train.ranks=2", "exchange.name=local-sgd", "exchange.outer_nesterov=true",
                     "exchange.block_momentum=0.9", "exchange.outer_lr=0.7", "exchange.local_from=100"}),
      "");
  EXPECT_THAT(error_of_sets({"train.ranks=2", "exchange.name=local-sgd", "exchange.outer_nesterov=true"}),
              HasSubstr("needs a momentum: give --set exchange.block_momentum=0.9"));
  EXPECT_THAT(error_of_sets({"train.ranks=2", "exchange.name=admm", "exchange.local_from=9"}),
              HasSubstr("exchange.local_from belongs to local-sgd, not to \"admm\""));
}

TEST(Validate, NesterovNeedsMomentum) {
  EXPECT_EQ(error_of({"optimizer.nesterov=true"}), "");
  EXPECT_THAT(error_of_sets({"optimizer.nesterov=true", "optimizer.name=adam"}),
              HasSubstr("use --optimizer sgd"));
  Config file;
  apply_toml(file, "[optimizer]\nname = \"adam\"\nnesterov = true\n", "job.toml");
  EXPECT_THAT(validate(file.spec, file.origins), IsEmpty());
  EXPECT_THAT(error_of_sets({"optimizer.nesterov=true", "train.ranks=2", "exchange.codec=prune"}),
              HasSubstr("--codec prune applies the momentum before it encodes"));
  EXPECT_THAT(error_of_sets({"optimizer.nesterov=true", "train.ranks=2", "exchange.codec=signsgd"}),
              HasSubstr("--codec signsgd applies the momentum before it encodes"));
  EXPECT_EQ(error_of_sets({"optimizer.nesterov=true", "optimizer.momentum=0.9", "train.ranks=2",
                           "exchange.codec=signsgd:correction=off"}),
            "");
  EXPECT_THAT(error_of_sets({"optimizer.clip_value=1", "train.ranks=2", "exchange.codec=int8"}),
              HasSubstr("leave out --codec or optimizer.clip_value"));
  EXPECT_EQ(error_of_sets({"optimizer.clip_value=1", "train.ranks=2", "exchange.name=local-sgd",
                           "exchange.codec=int8"}),
            "");
  EXPECT_THAT(error_of({"optimizer.nesterov=true", "optimizer.momentum=0"}),
              HasSubstr("needs a momentum above 0"));
}

TEST(Validate, AFileMayHoldSettingsOfSeveralExchanges) {
  Config config;
  apply_toml(
      config,
      "[exchange]\nevery = 16\nrounds = 2\npush_every = 3\nfetch_every = 3\nworker_weights = [0.5, 0.25]\n"
      "graph = \"torus\"\nbackup = 1\nstaleness = \"2\"\n[pipeline]\nmicro_batches = 4\n",
      "job.toml");
  EXPECT_THAT(validate(config.spec, config.origins), IsEmpty());
}

// The exchange reads these keys in other cases.
TEST(Validate, KeysThatAnotherChoiceMakesMeaninglessAreRefused) {
  const auto with = [](const std::vector<std::pair<std::string, std::string>>& flags) {
    Config config;
    apply_flag(config, *find_flag("-n"), "-n", "2");
    for (const auto& [flag, text] : flags) {
      if (flag == "--set")
        apply_set(config, text);
      else
        apply_flag(config, *find_flag(flag), flag, text);
    }
    return error_of_typed(std::move(config));
  };
  EXPECT_EQ(with({{"--codec", "1bit"}, {"--set", "train.bucket_mb=3"}}),
            "--set: train.bucket_mb has no effect with --codec 1bit: leave one of them out");
  EXPECT_THAT(with({{"--codec", "1bit"}, {"--set", "train.hash_every=7"}}),
              HasSubstr("no effect with --codec"));
  EXPECT_EQ(with({{"--codec", "1bit"}, {"--set", "train.hash_every=0"}}), "");
  EXPECT_EQ(with({{"--set", "optimizer.clip_value=1"}, {"--set", "train.bucket_mb=3"}}),
            "--set: train.bucket_mb has no effect with optimizer.clip_value: leave one of them out");
  EXPECT_EQ(
      with({{"--shard", "gradients"}, {"--set", "optimizer.clip_value=1"}, {"--set", "train.bucket_mb=3"}}),
      "");
  EXPECT_THAT(with({{"--shard", "parameters"}, {"--set", "train.bucket_mb=3"}}),
              HasSubstr("no effect with --shard parameters"));
  EXPECT_THAT(with({{"--exchange", "parallel-sgd"}, {"--rounds", "2"}, {"--every", "3"}}),
              HasSubstr("--every: exchange.every has no effect with --rounds 2"));
  EXPECT_THAT(with({{"--codec", "1bit"}, {"--set", "optimizer.share=replicated"}}),
              HasSubstr("no effect with"));
  EXPECT_THAT(with({{"--hybrid", "fc1"}, {"--set", "train.hash_every=3"}}),
              HasSubstr("no effect with --hybrid fc1"));
  EXPECT_THAT(with({{"--shard", "gradients"}, {"--set", "train.hash_every=3"}}),
              HasSubstr("no effect with --shard gradients"));
  EXPECT_EQ(with({{"--shard", "gradients"}, {"--set", "train.bucket_mb=3"}}), "");
  EXPECT_EQ(with({{"--shard", "gradients"}, {"--codec", "1bit"}, {"--set", "train.bucket_mb=3"}}), "");
  EXPECT_THAT(with({{"--shard", "gradients"}, {"--codec", "1bit"}, {"--set", "train.hash_every=3"}}),
              HasSubstr("no effect with --shard gradients"));
  // The ranks of a tensor axis compare their copies.
  EXPECT_EQ(with({{"--mesh", "tensor=2"}, {"--set", "train.hash_every=3"}}), "");
  EXPECT_EQ(with({{"-n", "4"},
                  {"--mesh", "replica=2,tensor=2"},
                  {"--shard", "gradients"},
                  {"--set", "train.hash_every=3"}}),
            "");
  EXPECT_THAT(with({{"--mesh", "stage=2"}, {"--set", "train.bucket_mb=3"}}),
              HasSubstr("no effect with --mesh stage=2"));
  EXPECT_EQ(with({{"-n", "4"}, {"--mesh", "replica=2,stage=2"}, {"--set", "train.bucket_mb=3"}}), "");
  const std::pair<std::string, std::string> server{"--exchange", "parameter-server"};
  EXPECT_THAT(with({server, {"--staleness", "inf"}, {"--reduction-order", "arrival"}}),
              HasSubstr("exchange.reduction_order has no effect with --staleness inf"));
  EXPECT_EQ(with({server, {"--staleness", "0"}, {"--reduction-order", "arrival"}}), "");
  EXPECT_THAT(with({server, {"--staleness", "0"}, {"--set", "exchange.staleness_weight=true"}}),
              HasSubstr("exchange.staleness_weight has no effect with --staleness 0"));
  EXPECT_EQ(with({server, {"--staleness", "2"}, {"--set", "exchange.staleness_weight=true"}}), "");
  EXPECT_EQ(with({{"--exchange", "downpour"}, {"--set", "exchange.staleness_weight=true"}}), "");
  EXPECT_THAT(with({{"--mesh", "stage=2"}, {"--schedule", "1f1b"}, {"--set", "pipeline.chunks=4"}}),
              HasSubstr("pipeline.chunks has no effect with --schedule 1f1b"));
}

TEST(Validate, KeysOfCalibrationNeedCalibratedActivations) {
  const auto with = [](const char* activations, const char* setting) {
    Config config;
    apply_flag(config, *find_flag("-n"), "-n", "2");
    apply_flag(config, *find_flag("--mesh"), "--mesh", "stage=2");
    apply_set(config, activations);
    apply_set(config, setting);
    return error_of_typed(std::move(config));
  };
  for (const char* setting : {"pipeline.calibration_steps=3", "pipeline.recalibrate_every=9",
                              "pipeline.saturation_limit=5", "pipeline.percentile=99"}) {
    EXPECT_THAT(with("pipeline.activations=int8", setting),
                HasSubstr("has no effect with pipeline.activations=int8"));
    EXPECT_EQ(with("pipeline.activations=calibrated-int8", setting), "");
  }
}

TEST(Validate, ThreadsWithoutLocksAreRefusedWhatHasNoMeaning) {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(),
                    {"train.threads_mode=hogwild", "train.threads=2", "optimizer.momentum=0"});
    return error_of(settings);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"train.thread_updates=32", "train.hogwild=sparse", "optimizer.clip_value=1"}), "");
  EXPECT_EQ(with({"train.threads=5"}), "");  // parts may have unequal sizes
  for (const char* exchange : {"local-sgd", "easgd", "parallel-sgd"})
    EXPECT_EQ(with({"train.ranks=2", std::string("exchange.name=") + exchange, "optimizer.weight_decay=0.1",
                    "optimizer.exempt_vectors=true"}),
              "")
        << exchange;
  EXPECT_EQ(with({"train.ranks=2", "exchange.name=local-sgd", "exchange.codec=int8"}), "");
  EXPECT_EQ(with({"train.ranks=2"}),
            "exchange.name: the threads of threads_mode = \"hogwild\" update the parameters of their rank "
            "at once, so all-reduce gets no gradient of a step: use -n 1 without --exchange, one of the "
            "exchanges local-sgd, easgd, parallel-sgd, or --threads-mode op");
  EXPECT_THAT(with({"exchange.name=gossip"}), HasSubstr("so gossip gets no gradient of a step"));
  EXPECT_THAT(with({"exchange.codec=int8"}), HasSubstr("leave out --codec"));
  EXPECT_EQ(with({"optimizer.name=adam"}),
            "optimizer.name: threads_mode = \"hogwild\" is plain SGD, because threads share the parameters "
            "only and no states of an optimizer: use --optimizer sgd in place of adam, or --threads-mode op");
  EXPECT_THAT(with({"optimizer.name=lars"}), HasSubstr("use --optimizer sgd in place of lars"));
  EXPECT_THAT(with({"optimizer.momentum=0.9"}), HasSubstr("use optimizer.momentum=0"));
  EXPECT_THAT(with({"optimizer.ema_decay=0.9"}), HasSubstr("leave out optimizer.ema_decay"));
  EXPECT_THAT(with({"train.hogwild=sparse", "optimizer.weight_decay=0.1"}),
              HasSubstr("use optimizer.weight_decay=0, or train.hogwild=dense"));
  EXPECT_THAT(with({"train.precision=bf16"}), HasSubstr("use --precision fp32"));
  EXPECT_THAT(with({"train.accumulate=2"}), HasSubstr("use train.thread_updates in place of --accumulate"));
  EXPECT_THAT(with({"model.batch_norm=sync"}), HasSubstr("use model.batch_norm=local"));
  EXPECT_THAT(with({"data.share=auto"}), HasSubstr("leave out --share"));
  EXPECT_THAT(with({"train.on_failure=continue"}), HasSubstr("use --on-failure stop"));
  EXPECT_THAT(with({"train.device=cuda"}), HasSubstr("use --threads-mode op"));
  EXPECT_THAT(with({"train.shard=gradients"}), HasSubstr("--threads-mode op only"));
  EXPECT_THAT(with({"train.ranks=2", "exchange.name=local-sgd", "train.mesh=tensor=2"}),
              HasSubstr("use --threads-mode op"));
  Config config;
  apply_set(config, "train.thread_updates=2");
  EXPECT_THROW(validate(config.spec, config.origins), ConfigError);  // it has no effect with op
}

TEST(Validate, AStepHasASampleForEachUpdateOfAThread) {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"train.threads_mode=hogwild", "optimizer.momentum=0"});
    return error_of(settings);
  };
  EXPECT_EQ(with({"train.threads=2", "train.thread_updates=33"}),
            "train.global_batch: each of 2 threads makes 33 updates in a step, but the rank has 64 samples "
            "of it: use a train.global_batch of 66 or more, or fewer --threads or train.thread_updates");
  EXPECT_EQ(with({"train.threads=1", "train.thread_updates=64"}), "");
  EXPECT_THAT(with({"train.threads=1", "train.thread_updates=65"}), HasSubstr("makes 65 updates in a step"));
  EXPECT_THAT(with({"train.threads=4096", "train.thread_updates=1048576"}),
              HasSubstr("use a train.global_batch of 4294967296 or more"));
  // A larger product would leave the range of 64 bits.
  Config many;
  many.spec.train.threads_mode = ThreadsMode::kHogwild;
  many.spec.optimizer.momentum = 0;
  EXPECT_THROW(apply_set(many, "train.thread_updates=4611686018427387904"), ConfigError);
  many.spec.train.threads = 4;
  many.spec.train.thread_updates = int64_t{1} << 62;
  try {
    validate(many.spec, many.origins);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("makes 4611686018427387904 updates in a step"));
  }
}

TEST(Validate, ADeviceOtherThanTheCpuNeedsWholeModels) {
  const auto with = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"train.device=cuda", "train.ranks=2"});
    return error_of(settings);
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({"train.shard=gradients"}), "");
  EXPECT_EQ(with({"train.mesh=stage=2"}),
            "train.mesh: train.device = \"cuda\": the stages of a pipeline compute on the CPU: leave out the "
            "stage axis, or use --device cpu");
  EXPECT_THAT(with({"train.mesh=tensor=2"}), HasSubstr("leave out the tensor axis"));
  EXPECT_THAT(with({"train.shard=parameters"}), HasSubstr("use --shard gradients, or --device cpu"));
  EXPECT_THAT(with({"train.hybrid=fc1"}), HasSubstr("leave out --hybrid"));
  EXPECT_THAT(with({"train.threads_mode=batch", "train.threads=2"}), HasSubstr("use --threads-mode op"));
  EXPECT_THAT(with({"model.conv=im2col"}), HasSubstr("use --conv auto"));
  EXPECT_THAT(with({"model.batch_norm=sync"}), HasSubstr("use --set model.batch_norm=local"));
  EXPECT_THAT(with({"train.tune=true"}), HasSubstr("--tune measures the CPU"));
  EXPECT_EQ(error_of({"train.device=auto", "train.ranks=2", "train.mesh=stage=2"}), "");
}

}  // namespace
}  // namespace starling
