#include "starling/spec/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/spec/validate.h"

namespace starling {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Config config_with(const std::vector<std::string>& assignments) {
  Config config;
  for (const std::string& assignment : assignments) apply_set(config, assignment);
  apply_recipes(config);
  return config;
}

TEST(Recipes, AModelBringsItsDefaultsAndSaysSo) {
  const Config config = config_with({"model.name=resnet18"});
  EXPECT_EQ(config.spec.optimizer.lr, 1e-3);
  EXPECT_EQ(config.spec.optimizer.weight_decay, 0.05);
  EXPECT_EQ(config.spec.train.global_batch, 128);
  EXPECT_EQ(config.spec.schedule.name, "poly");
  EXPECT_EQ(config.spec.schedule.power, 1);
  EXPECT_EQ(origin_text(config.origins, "optimizer.lr"), "recipe of resnet18");
  EXPECT_FALSE(is_given(config.origins, "optimizer.lr"));
}

TEST(Recipes, WhatIsGivenWins) {
  const Config config = config_with({"model.name=resnet18", "optimizer.lr=0.3", "train.global_batch=32"});
  EXPECT_EQ(config.spec.optimizer.lr, 0.3);
  EXPECT_EQ(config.spec.train.global_batch, 32);
  EXPECT_EQ(config.spec.optimizer.weight_decay, 0.05);
  EXPECT_EQ(origin_text(config.origins, "optimizer.lr"), "--set");
  EXPECT_TRUE(is_given(config.origins, "optimizer.lr"));
}

TEST(Recipes, AnOptimizerNamedWithoutARateGetsItsOwn) {
  const Config adam = config_with({"model.name=lenet5", "optimizer.name=adam"});
  EXPECT_EQ(adam.spec.optimizer.lr, 1e-3);
  EXPECT_EQ(adam.spec.optimizer.weight_decay, 0);  // that of the model's recipe belongs to sgd
  EXPECT_EQ(adam.spec.schedule.name, "cosine");
  EXPECT_EQ(origin_text(adam.origins, "optimizer.lr"), "recipe of adam");
  EXPECT_EQ(config_with({"optimizer.name=adam", "optimizer.lr=0.01"}).spec.optimizer.lr, 0.01);
  EXPECT_EQ(config_with({"model.name=lenet5", "optimizer.name=sgd"}).spec.optimizer.lr, 0.02);
}

// The program or a file sets a rate, and a flag chooses something with a rate of its own.
TEST(Recipes, ARateThatReplacesThatOfALaterChoiceIsSaid) {
  const auto warning = [](const std::string& set) {
    Config config;
    config.spec.model.name = kUserModel;
    apply_code(config, "optimizer.lr", "0.05", "the program");
    apply_set(config, set);
    apply_recipes(config);
    return rate_warning(config).value_or("");
  };
  EXPECT_EQ(
      warning("optimizer.name=lamb"),
      "optimizer.lr = 0.05 comes from the program, but the recipe of lamb has the rate 0.005: give --lr, "
      "or leave optimizer.lr out there");
  EXPECT_THAT(warning("exchange.codec=1bit"), HasSubstr("the recipe of 1bit has the rate 0.5"));
  EXPECT_THAT(warning("exchange.name=downpour"), HasSubstr("the recipe of downpour has the rate 0.25"));
  EXPECT_EQ(warning("exchange.codec=fp16"), "");
  EXPECT_EQ(warning("optimizer.lr=0.1"), "");
  EXPECT_EQ(warning("exchange.name=gossip"), "");
}

// lr / (1 - momentum) stays equal.
TEST(Recipes, ExchangesAndCodecsThatCannotTakeMomentumKeepTheLengthOfTheStep) {
  const Config bit = config_with({"model.name=lenet5", "exchange.codec=1bit"});
  EXPECT_EQ(bit.spec.optimizer.momentum, 0);
  EXPECT_NEAR(bit.spec.optimizer.lr, 0.2, 1e-9);
  const Config downpour = config_with({"model.name=lenet5", "exchange.name=downpour"});
  EXPECT_EQ(downpour.spec.optimizer.momentum, 0.5);
  EXPECT_NEAR(downpour.spec.optimizer.lr, 0.1, 1e-9);
  const Config elastic = config_with({"model.name=lenet5", "exchange.name=async-easgd"});
  EXPECT_EQ(elastic.spec.optimizer.momentum, 0.9);  // each worker has its own momentum, as with easgd
  EXPECT_NEAR(elastic.spec.optimizer.lr, 0.02, 1e-9);
  const Config inf =
      config_with({"model.name=lenet5", "exchange.name=parameter-server", "exchange.staleness=inf"});
  EXPECT_EQ(inf.spec.optimizer.momentum, 0);
  EXPECT_NEAR(inf.spec.optimizer.lr, 0.2, 1e-9);
  const Config bounded =
      config_with({"model.name=lenet5", "exchange.name=parameter-server", "exchange.staleness=3"});
  EXPECT_EQ(bounded.spec.optimizer.momentum, 0);
  EXPECT_NEAR(bounded.spec.optimizer.lr, 0.2, 1e-9);
  const Config admm = config_with({"model.name=lenet5", "exchange.name=admm"});
  EXPECT_EQ(admm.spec.optimizer.momentum, 0);
  EXPECT_NEAR(admm.spec.optimizer.lr, 0.04, 1e-9);  // the momentum is that of the consensus
  EXPECT_EQ(admm.spec.exchange.block_momentum, 0.8);
  EXPECT_EQ(admm.spec.exchange.rho, 2);
  EXPECT_FALSE(admm.spec.exchange.adaptive_rho);
  EXPECT_EQ(admm.spec.schedule.name, "cosine");
  const Config adam_of_admm = config_with({"exchange.name=admm", "optimizer.name=adam"});
  EXPECT_EQ(adam_of_admm.spec.exchange.block_momentum, 0);
  EXPECT_EQ(config_with({"exchange.name=admm", "optimizer.momentum=0"}).spec.exchange.block_momentum, 0);
  const Config own = config_with({"model.name=lenet5", "exchange.codec=1bit", "optimizer.lr=0.02"});
  EXPECT_EQ(own.spec.optimizer.momentum, 0);
  EXPECT_EQ(own.spec.optimizer.lr, 0.02);
  const Config both = config_with({"model.name=lenet5", "exchange.codec=1bit", "optimizer.momentum=0.9"});
  EXPECT_EQ(both.spec.optimizer.momentum, 0.9);
  EXPECT_EQ(both.spec.optimizer.lr, 0.02);
}

// A vote moves each weight by the learning rate, so its rate does not follow from that of sgd. The momentum
// of the model stays if all-reduce puts it before the vote.
TEST(Recipes, ACodecOfSignsHasARateOfItsOwn) {
  for (const auto& [codec, momentum] : std::vector<std::pair<std::string, double>>{
           {"signsgd", 0.9}, {"signsgd:feedback=off", 0.9}, {"signsgd:correction=off", 0}}) {
    const Config config = config_with({"model.name=lenet5", "exchange.codec=" + codec});
    EXPECT_EQ(config.spec.optimizer.momentum, momentum) << codec;
    EXPECT_EQ(config.spec.optimizer.lr, 5e-4) << codec;
    EXPECT_EQ(config.spec.optimizer.weight_decay, 1e-4) << codec;
    EXPECT_EQ(origin_text(config.origins, "optimizer.lr"), "recipe of signsgd") << codec;
  }
  const Config own = config_with({"model.name=lenet5", "exchange.codec=signsgd", "optimizer.lr=0.01"});
  EXPECT_EQ(own.spec.optimizer.lr, 0.01);
  const Config momentum =
      config_with({"model.name=lenet5", "exchange.codec=signsgd", "optimizer.momentum=0.5"});
  EXPECT_EQ(momentum.spec.optimizer.momentum, 0.5);
  EXPECT_EQ(momentum.spec.optimizer.lr, 5e-4);
  const Config adam = config_with({"model.name=lenet5", "exchange.codec=signsgd", "optimizer.name=adam"});
  EXPECT_EQ(origin_text(adam.origins, "optimizer.lr"), "recipe of adam");
  EXPECT_EQ(config_with({"model.name=lenet5", "exchange.codec=qsgd"}).spec.optimizer.momentum, 0.9);
  EXPECT_NEAR(config_with({"model.name=lenet5", "exchange.codec=random-k"}).spec.optimizer.lr, 0.2, 1e-9);
}

// all-reduce puts the momentum before the codecs prune, threshold and dgc. Servers and ZeRO do not. The
// settings feedback=off and correction=off turn it off.
TEST(Recipes, MomentumStaysWhereACodecCorrectsIt) {
  for (const auto& [codec, rate] : std::vector<std::pair<std::string, double>>{{"prune", 0.06},
                                                                               {"threshold:tau=0.1", 0.06},
                                                                               {"dgc", 0.03},
                                                                               {"prune+int8:keep=0.05", 0.06},
                                                                               {"dgc+fp16", 0.03}}) {
    const Config config = config_with({"model.name=lenet5", "exchange.codec=" + codec});
    EXPECT_EQ(config.spec.optimizer.momentum, 0.9) << codec;
    EXPECT_NEAR(config.spec.optimizer.lr, rate, 1e-9) << codec;
  }
  for (const char* setting : {"exchange.codec=prune:correction=off", "exchange.codec=prune:feedback=off",
                              "exchange.codec=prune+int8:correction=off"})
    EXPECT_EQ(config_with({"model.name=lenet5", setting}).spec.optimizer.momentum, 0) << setting;
  const Config servers =
      config_with({"model.name=lenet5", "exchange.name=parameter-server", "exchange.codec=prune"});
  EXPECT_EQ(servers.spec.optimizer.momentum, 0);
  const Config sharded = config_with({"model.name=lenet5", "train.shard=gradients", "exchange.codec=prune"});
  EXPECT_EQ(sharded.spec.optimizer.momentum, 0);
  EXPECT_NEAR(sharded.spec.optimizer.lr, 0.2, 1e-9);
  const Config votes = config_with({"model.name=lenet5", "train.shard=gradients", "exchange.codec=signsgd"});
  EXPECT_EQ(votes.spec.optimizer.momentum, 0);
  EXPECT_NEAR(votes.spec.optimizer.lr, 5e-4, 1e-12);
  const Config stack = config_with({"model.name=lenet5", "exchange.codec=lowrank+fp16:rank=4"});
  EXPECT_EQ(stack.spec.optimizer.momentum, 0.9);
  EXPECT_NEAR(stack.spec.optimizer.lr, 0.02, 1e-9);
}

TEST(Recipes, FollowAChangeOfTheConfiguration) {
  Config config = config_with({"model.name=lenet5", "exchange.codec=1bit"});
  apply_set(config, "exchange.codec=none");
  apply_recipes(config);
  EXPECT_EQ(config.spec.optimizer.momentum, 0.9);
  EXPECT_EQ(config.spec.optimizer.lr, 0.02);
  config.spec.model.name = "user";  // a model of the user's own program
  apply_recipes(config);
  EXPECT_EQ(config.spec.optimizer.lr, OptimizerSpec{}.lr);
  EXPECT_EQ(config.spec.schedule.name, "constant");
}

// A run that resumes with another number of steps has the same recipe.
TEST(Recipes, DoNotDependOnTheLengthOfTheRun) {
  const Config config = config_with({"model.name=lenet5", "train.steps=40"});
  EXPECT_EQ(config.spec.schedule.warmup_steps, 0);
  EXPECT_EQ(config.spec.schedule.warmup_share, 0.02);
  EXPECT_THAT(validate(config.spec, config.origins), testing::IsEmpty());
  const Config own = config_with({"model.name=lenet5", "train.steps=40", "schedule.warmup_steps=50"});
  EXPECT_THAT(validate(own.spec, own.origins), testing::ElementsAre(testing::HasSubstr("never reaches")));
}

// The warnings about the warm-up of a codec, one text for all.
std::string warned(std::vector<std::string> assignments) {
  assignments.insert(assignments.begin(), {"model.name=lenet5", "train.ranks=2"});
  const Config config = config_with(assignments);
  std::string text;
  for (const std::string& warning : validate(config.spec, config.origins)) text += warning;
  return text;
}

TEST(Recipes, AWarmUpOfACodecEndsBeforeTheRunEnds) {
  EXPECT_EQ(warned({"exchange.codec=dgc", "train.steps=401"}), "");
  EXPECT_EQ(
      warned({"exchange.codec=dgc", "train.steps=400"}),
      "the warm-up of --codec dgc has 400 messages, and train.steps = 400 sends 400, so the run never sends "
      "as few values as keep = 0.001 says. Set warmup below 400");
  EXPECT_EQ(warned({"exchange.codec=dgc:warmup=9", "train.steps=10"}), "");
  EXPECT_THAT(
      warned({"exchange.codec=dgc+int8:keep=0.1,warmup=10,block=64", "train.steps=10"}),
      testing::HasSubstr("warm-up of --codec dgc has 10 messages, and train.steps = 10 sends 10, so"));
  EXPECT_EQ(warned({"exchange.codec=dgc:warmup=0", "train.steps=10"}), "");
  EXPECT_EQ(warned({"exchange.codec=dgc:keep=0.3", "train.steps=10"}), "");  // no warm-up above 0.25
  EXPECT_EQ(warned({"exchange.codec=dgc"}), "");                             // the length is not known yet
  EXPECT_EQ(warned({"exchange.codec=prune", "train.steps=10"}), "");
  // With local SGD a message is a round: 5 rounds in the first 5 steps, then one in 10 steps.
  const std::vector<std::string> rounds = {"exchange.name=local-sgd", "exchange.every=10", "train.steps=40"};
  const auto local = [&](const std::string& codec, const std::string& from) {
    std::vector<std::string> all = rounds;
    all.insert(all.end(), {"exchange.codec=" + codec, "exchange.local_from=" + from});
    return warned(all);
  };
  EXPECT_EQ(local("dgc:warmup=3", "0"), "");
  EXPECT_THAT(local("dgc:warmup=4", "0"), testing::HasSubstr("train.steps = 40 sends 4,"));
  EXPECT_EQ(local("dgc:warmup=8", "5"), "");
  EXPECT_THAT(local("dgc:warmup=9", "5"), testing::HasSubstr("train.steps = 40 sends 9,"));
  EXPECT_THAT(local("dgc:warmup=22", "20"), testing::HasSubstr("train.steps = 40 sends 22,"));
}

TEST(Recipes, TheBatchIsRoundedToWhatTheReplicasShareEqually) {
  const auto batch = [](const std::vector<std::string>& assignments) {
    const Config config = config_with(assignments);
    validate(config.spec, config.origins);
    return config.spec.train.global_batch;
  };
  EXPECT_EQ(batch({"model.name=lenet5", "train.ranks=3"}), 63);
  EXPECT_EQ(batch({"model.name=lenet5", "train.ranks=5"}), 65);
  EXPECT_EQ(batch({"model.name=lenet5", "train.ranks=200"}), 200);
  EXPECT_EQ(batch({"model.name=resnet18", "train.ranks=3"}), 129);
  EXPECT_EQ(batch({"model.name=gpt", "data.source=grammar", "train.ranks=16"}), 16);
  const std::vector<std::string> pipeline = {"model.name=resnet18", "train.mesh=stage=2"};
  const auto with = [&](const std::string& ranks) {
    std::vector<std::string> all = pipeline;
    all.push_back("train.ranks=" + ranks);
    return batch(all);
  };
  EXPECT_EQ(with("4"), 128);  // 2 replicas, 8 micro-batches of 8
  EXPECT_EQ(with("6"), 120);  // 3 replicas, 8 micro-batches of 5
  Config config = config_with({"model.name=lenet5", "train.ranks=3"});
  EXPECT_EQ(origin_text(config.origins, "train.global_batch"), "recipe of lenet5");
  apply_set(config, "train.ranks=2");
  apply_recipes(config);
  EXPECT_EQ(config.spec.train.global_batch, 64);
  const Config given = config_with({"model.name=lenet5", "train.ranks=3", "train.global_batch=64"});
  EXPECT_EQ(given.spec.train.global_batch, 64);
  const Config wrong = config_with({"model.name=lenet5", "train.ranks=3", "train.mesh=stage=2"});
  EXPECT_EQ(wrong.spec.train.global_batch, 64);
  EXPECT_THROW(validate(wrong.spec, wrong.origins), ConfigError);
}

// Central storage does not clip, and workers that push gradients clip one by one, so the recipe of llama sets
// no clipping there.
TEST(Recipes, TheNearestBatchIsAtLeastOneSamplePerReplica) {
  EXPECT_EQ(nearest_batch(64, 3), 63);
  EXPECT_EQ(nearest_batch(64, 5), 65);
  EXPECT_EQ(nearest_batch(64, 4), 64);
  EXPECT_EQ(nearest_batch(6, 4), 8);  // 4 is as near
  EXPECT_EQ(nearest_batch(8, 100), 100);
}

TEST(Recipes, ClipOnlyWhereTheExchangeCan) {
  const std::vector<std::string> llama = {"model.name=llama", "data.source=grammar"};
  EXPECT_EQ(config_with(llama).spec.optimizer.clip_norm, 1.0);
  for (const char* exchange : {"exchange.name=central", "exchange.name=parameter-server"}) {
    std::vector<std::string> words = llama;
    words.emplace_back(exchange);
    const Config config = config_with(words);
    EXPECT_EQ(config.spec.optimizer.clip_norm, 0.0) << exchange;
    validate(config.spec, config.origins);
  }
  std::vector<std::string> elastic = llama;
  elastic.emplace_back("exchange.name=async-easgd");  // its workers update their own models
  EXPECT_EQ(config_with(elastic).spec.optimizer.clip_norm, 1.0);
}

TEST(Recipes, ThreadsWithoutLocksHaveNoMomentum) {
  const Config dense = config_with({"model.name=mlp", "train.threads_mode=hogwild"});
  EXPECT_EQ(dense.spec.optimizer.momentum, 0);
  EXPECT_DOUBLE_EQ(dense.spec.optimizer.lr, 0.5);  // lr / (1 - momentum) stays
  EXPECT_EQ(dense.spec.optimizer.weight_decay, 1e-4);
  EXPECT_EQ(origin_text(dense.origins, "optimizer.lr"), "recipe of --threads-mode hogwild");
  validate(dense.spec, dense.origins);
  const Config sparse = config_with({"model.name=mlp", "train.threads_mode=hogwild", "train.hogwild=sparse"});
  EXPECT_EQ(sparse.spec.optimizer.weight_decay, 0);
  validate(sparse.spec, sparse.origins);
  const Config given =
      config_with({"model.name=mlp", "train.threads_mode=hogwild", "optimizer.momentum=0.9"});
  EXPECT_THROW(validate(given.spec, given.origins), ConfigError);
}

TEST(Recipes, EveryRecipeIsValid) {
  for (const ModelRecipe& recipe : model_recipes()) {
    const bool text = recipe.model == "gpt" || recipe.model == "llama";
    const Config config = config_with(
        {"model.name=" + std::string(recipe.model), text ? "data.source=grammar" : "data.source=digits"});
    validate(config.spec, config.origins);
    EXPECT_THAT(origin_text(config.origins, "optimizer.lr"), StartsWith("recipe of ")) << recipe.model;
  }
}

}  // namespace
}  // namespace starling
