#include "starling/spec/print.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;

// Returns a configuration in which a value of each type differs from its default.
Config example() {
  Config config;
  for (const char* assignment :
       {"model.widths=[784,10]", "optimizer.lr=0.1", "optimizer.eps=1e-300", "train.seed=9223372036854775807",
        "data.source=\"text:a\\\"b\\\\c\\n.txt\"", "train.precision=bf16", "data.augment=true",
        "schedule.milestones=[1,2.5]", "train.epochs=3"}) {
    apply_set(config, assignment);
  }
  return config;
}

TEST(ConfigPrint, TomlReadsBackAsTheSame) {
  const Config config = example();
  Config again;
  apply_toml(again, config_to_toml(config), "printed.toml");
  EXPECT_EQ(spec_to_json(again.spec), spec_to_json(config.spec));
  EXPECT_EQ(again.spec.data.source, "text:a\"b\\c\n.txt");
  EXPECT_EQ(again.origins.size(), schema().size());
}

TEST(ConfigPrint, AlignsAndSaysWhereFrom) {
  const std::string text = config_to_toml(example());
  EXPECT_THAT(text, HasSubstr("\n[checkpoint]\nevery   = 0     # default\nminutes = 10.0  # default\nkeep    "
                              "= 2     # default\n"));
  EXPECT_THAT(text, HasSubstr("\nlr             = 0.1     # --set\n"));
}

TEST(ConfigPrint, JsonReadsBackAsTheSame) {
  const Config config = example();
  const auto json = spec_to_json(config.spec);
  const RunSpec again = spec_from_json(nlohmann::json::parse(json.dump()), "manifest");
  EXPECT_EQ(spec_to_json(again), json);
  EXPECT_EQ(again.train.seed, 9223372036854775807ULL);
  EXPECT_EQ(again.optimizer.eps, 1e-300);
  const auto line = nlohmann::json::parse(config_to_json_line(config));
  EXPECT_EQ(line.at("event"), "config");
  EXPECT_EQ(line.at("values"), json);
  EXPECT_EQ(line.at("origins").at("optimizer.lr"), "--set");
  EXPECT_EQ(line.at("origins").at("train.ranks"), "default");
}

TEST(ConfigPrint, JsonOfAUsersOwnProgramReadsBack) {
  RunSpec spec;
  spec.model.name = kUserModel;
  const auto json = spec_to_json(spec);
  EXPECT_EQ(spec_from_json(json, "manifest").model.name, kUserModel);
  EXPECT_TRUE(differences(spec_from_json(json, "manifest"), spec).empty());
}

TEST(ConfigPrint, JsonOfTheManifestIsChecked) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      spec_from_json(nlohmann::json::parse(text), "manifest.json");
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("{}"), "");
  EXPECT_EQ(error_of("3"), "manifest.json: the configuration is not a JSON object");
  EXPECT_EQ(error_of(R"({"train": 3})"), "manifest.json: train is not a JSON object");
  EXPECT_EQ(error_of(R"({"train": {"rnks": 3}})"),
            "manifest.json: unknown key train.rnks. Another version of Starling may have written it");
  EXPECT_EQ(error_of(R"({"train": {"ranks": "a"}})"), "manifest.json: train.ranks is an integer, not \"a\"");
  EXPECT_EQ(error_of(R"({"train": {"ranks": null}})"), "manifest.json: train.ranks is an integer, not null");
}

TEST(Differences, AreTheKeysThatShapeTraining) {
  RunSpec a, b;
  EXPECT_TRUE(differences(a, b).empty());
  b.train.seed = 7;
  b.optimizer.lr = 0.1;
  const auto found = differences(a, b);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key, "optimizer.lr");
  EXPECT_EQ(found[0].a, "0.05");
  EXPECT_EQ(found[0].b, "0.1");
  EXPECT_EQ(found[1].key, "train.seed");
  EXPECT_EQ(found[1].b, "7");
}

TEST(Differences, IgnoreWhatMayChangeOnResume) {
  RunSpec a, b;
  b.run.dir = "elsewhere";
  b.run.resume = "never";
  b.train.threads = 7;  // the default depends on the machine
  b.train.save = "x.safetensors";
  b.train.steps = 10;
  b.train.epochs = 7;
  b.checkpoint.every = 5;
  b.checkpoint.keep = 9;
  b.comm.timeout_s = 1;
  b.comm.interface = "eth0";
  b.comm.key_file = "key";
  b.comm.shared_memory = false;
  EXPECT_TRUE(differences(a, b).empty());
  b.train.ranks = 2;
  ASSERT_EQ(differences(a, b).size(), 1u);
  EXPECT_EQ(differences(a, b)[0].key, "train.ranks");
}

// Each thread has mini-batches of its own, so their number shapes the training.
TEST(Differences, CountThreadsWithoutLocks) {
  RunSpec a, b;
  a.train.threads_mode = b.train.threads_mode = ThreadsMode::kHogwild;
  a.train.threads = 2;
  b.train.threads = 4;
  const auto found = differences(a, b);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, "train.threads");
  EXPECT_EQ(found[0].a, "2");
  EXPECT_EQ(found[0].b, "4");
  a.train.threads_mode = b.train.threads_mode = ThreadsMode::kBatch;
  EXPECT_TRUE(differences(a, b).empty());
}

TEST(ConfigPrint, AWordOfAnEarlierVersionIsRead) {
  const auto json =
      nlohmann::json::parse(R"({"exchange": {"central": "divided"}, "optimizer": {"share": "divided"}})");
  const RunSpec spec = spec_from_json(json, "state.json");
  EXPECT_EQ(spec.exchange.central, CentralMode::kSharded);
  EXPECT_EQ(spec.optimizer.share, OptimizerShare::kSharded);
}

TEST(ConfigPrint, ADeeplyNestedValueIsRefused) {
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  const auto json = nlohmann::json::parse(R"({"train": {"seed": )" + deep + "}}");
  try {
    spec_from_json(json, "state.json");
    FAIL() << "the value was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("train.seed is an integer, not a nested array"));
  }
}

}  // namespace
}  // namespace starling
