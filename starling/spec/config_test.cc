#include "starling/spec/config.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/spec/named_runs.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Config parse(std::string_view text) {
  Config config;
  apply_toml(config, text, "run.toml");
  return config;
}

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    return error.what();
  }
  return "no error";
}

std::string toml_error(std::string_view text) {
  return error_of([&] { parse(text); });
}

std::string set_error(const std::string& assignment) {
  Config config;
  return error_of([&] { apply_set(config, assignment); });
}

TEST(ConfigToml, ReadsEveryType) {
  const Config config = parse(
      "[model]\n"
      "name = 'mlp'\n"
      "widths = [784, 4096, 4096, 10]\n"
      "[data]\n"
      "augment = true\n"
      "order = 'sequential'\n"
      "[optimizer]\n"
      "lr = 1\n"
      "[schedule]\n"
      "milestones = [1, 2.5]\n"
      "[train]\n"
      "seed = 9223372036854775807\n"
      "precision = \"bf16\"\n");
  EXPECT_EQ(config.spec.model.name, "mlp");
  EXPECT_THAT(config.spec.model.widths, ElementsAre(784, 4096, 4096, 10));
  EXPECT_TRUE(config.spec.data.augment);
  EXPECT_EQ(config.spec.data.order, Order::kSequential);
  EXPECT_EQ(config.spec.optimizer.lr, 1.0);
  EXPECT_THAT(config.spec.schedule.milestones, ElementsAre(1.0, 2.5));
  EXPECT_EQ(config.spec.train.seed, 9223372036854775807ULL);
  EXPECT_EQ(config.spec.train.precision, Precision::kBf16);
  EXPECT_EQ(origin_text(config.origins, "model.widths"), "run.toml:3:10");
  EXPECT_EQ(origin_text(config.origins, "train.ranks"), "default");
}

TEST(ConfigToml, ReadsDottedKeysAndEmptyLists) {
  const Config config = parse("train.ranks = 4\nschedule.milestones = []\nmodel = { widths = [] }\n");
  EXPECT_EQ(config.spec.train.ranks, 4);
  EXPECT_TRUE(config.spec.schedule.milestones.empty());
  EXPECT_TRUE(config.spec.model.widths.empty());
}

TEST(ConfigToml, LeavesNamedRunsAsideAndAppliesOne) {
  const std::string path = testing::TempDir() + "named_runs.toml";
  std::ofstream(path) << "[train]\nranks = 4\n[runs.late]\nexchange = { name = \"local-sgd\", every = 64 }\n"
                         "[runs.early]\nexchange.name = \"gossip\"\ntrain.ranks = 2\n";
  Config config;
  apply_toml_file(config, path);
  EXPECT_EQ(config.spec.exchange.name, "all-reduce");
  EXPECT_THAT(run_names(path), ElementsAre("late", "early"));
  apply_run(config, path, "late");
  EXPECT_EQ(config.spec.exchange.name, "local-sgd");
  EXPECT_EQ(config.spec.exchange.every, 64);
  EXPECT_EQ(config.spec.train.ranks, 4);
  EXPECT_THAT(error_of([&] { apply_run(config, path, "never"); }), HasSubstr("has no table [runs.never]"));
  EXPECT_EQ(toml_error("[runs.a]\ntrain.rank = 2\n"),
            "run.toml:2:7: unknown key train.rank: did you mean train.ranks?");
  EXPECT_EQ(toml_error("[runs]\na = 2\n"),
            "run.toml:2:1: runs.a is not a table: write its keys under [runs.a]");
}

TEST(ConfigToml, PlacesEachMistake) {
  EXPECT_EQ(toml_error("[train]\nrank = 2\n"),
            "run.toml:2:1: unknown key train.rank: did you mean train.ranks?");
  EXPECT_EQ(toml_error("[train]\n  lr = 0.1\n"),
            "run.toml:2:3: unknown key train.lr: did you mean optimizer.lr?");
  EXPECT_EQ(toml_error("lr = 0.1\n"), "run.toml:1:1: unknown key lr: did you mean optimizer.lr?");
  EXPECT_EQ(toml_error("[train]\nranks = 2\n\n[optimiser]\nlr = 1\n"),
            "run.toml:4:2: unknown table [optimiser]: did you mean [optimizer]?");
  EXPECT_EQ(toml_error("[zzzzzzzzzz]\n"),
            "run.toml:1:2: unknown table [zzzzzzzzzz]: `starling config show` lists all keys");
  EXPECT_EQ(toml_error("train = 3\n"),
            "run.toml:1:1: train is a table, not a value: write its keys under [train]");
  EXPECT_EQ(toml_error("[train]\nranks = \"two\"\n"), "run.toml:2:9: train.ranks is an integer, not \"two\"");
  EXPECT_EQ(toml_error("[train]\nranks = 2.0\n"), "run.toml:2:9: train.ranks is an integer, not 2.0");
  EXPECT_EQ(toml_error("[train.ranks]\nx = 1\n"), "run.toml:1:1: train.ranks is an integer, not a table");
  EXPECT_EQ(toml_error("[train]\nseed = 2026-01-02\n"),
            "run.toml:2:8: train.seed is an integer, not a date or time");
  EXPECT_EQ(toml_error("[train]\nranks = -1\n"),
            "run.toml:2:9: train.ranks = -1 is out of range: it must be at least 1 and at most 65536");
  EXPECT_EQ(
      toml_error("[model]\n\nname = \"lenet6\"\n"),
      "run.toml:3:8: model.name = \"lenet6\" is unknown: did you mean \"lenet5\"? use one of mlp, lenet5, "
      "resnet18, resnet34, resnet50, alexnet, nin, googlenet, vgg19, gpt, llama");
  EXPECT_EQ(toml_error("[model]\nwidths = [784, \"ten\"]\n"),
            "run.toml:2:10: model.widths is a list of integers, not a list of mixed or nested values");
}

TEST(ConfigToml, ReportsTheFirstMistakeOfAFile) {
  EXPECT_THAT(toml_error("[train]\nzz = 1\n[data]\naa = 1\n"),
              StartsWith("run.toml:2:1: unknown key train.zz"));
}

// Each part of a key is a table in the one before. Tens of thousands of them overflow the stack of the
// parser.
TEST(ConfigToml, RefusesKeysOfManyParts) {
  std::string key = "a";
  for (int i = 0; i < 100'000; ++i) key += i % 2 == 0 ? ".1" : " . \",\"";
  for (const std::string& text : {key + " = 1", "[" + key + "]", "[runs.x]\n" + key + " = 1"}) {
    Config config;
    const std::string error = error_of([&] { apply_toml(config, "\n" + text, "f.toml"); });
    EXPECT_THAT(error, AllOf(HasSubstr("f.toml:"), HasSubstr("more than 8 dots"))) << text.substr(0, 20);
  }
  Config config;
  EXPECT_THAT(error_of([&] { apply_set(config, "model.widths={" + key + "=1}"); }),
              HasSubstr("more than 8 dots"));
  // Tables in tables and lists, to the depth that toml++ allows, each with the longest key.
  std::string nested = "1";
  for (int i = 0; i < 250; ++i) nested = "{ x = [\n], a.b.c.d.e.f.g.h.i = " + nested + "}";
  EXPECT_THAT(error_of([&] { apply_toml(config, "a.b.c.d.e.f.g.h.i = " + nested, "f.toml"); }),
              HasSubstr("f.toml:1:1: unknown table [a]"));
  EXPECT_THAT(error_of([&] { apply_toml(config, "a = { b = [\n], a.b.c.d.e.f.g.h.i.j = 1}", "f.toml"); }),
              HasSubstr("f.toml:2: a key has more than 8 dots"));
  const std::string strings = R"(v = [ "\"#", 'a\', """x"""", '''
x''''', "", {)";
  EXPECT_THAT(error_of([&] { apply_toml(config, strings + key + " = 1}]", "f.toml"); }),
              HasSubstr("f.toml:2: a key has more than 8 dots"));
  std::string hosts = "10.0.0.1:8";
  for (int i = 0; i < 100; ++i) hosts += ",node.cluster.example.com:8";
  apply_toml(config, "# " + hosts + "\nlaunch.hosts = \"" + hosts + "\" # " + hosts, "f.toml");
  EXPECT_EQ(config.spec.launch.hosts, hosts);
  apply_set(config, "launch.hosts='" + hosts + "'");
  std::string list = "[optimizer]\nbetas = [0.5";
  for (int i = 0; i < 200; ++i) list += ", 0.25";
  EXPECT_THAT(error_of([&] { apply_toml(config, list + "]  # .........", "f.toml"); }),
              HasSubstr("f.toml:2:1: unknown key optimizer.betas"));
}

TEST(ConfigToml, PlacesSyntaxErrorsAndDuplicates) {
  EXPECT_THAT(toml_error("[train]\nranks = \n"), StartsWith("run.toml:2:9: not TOML: "));
  EXPECT_THAT(toml_error("[train]\nranks = 2\nranks = 3\n"), StartsWith("run.toml:3:"));
  EXPECT_THAT(toml_error("[train]\nranks = 2\nranks = 3\n"), HasSubstr("redefine"));
  EXPECT_THAT(toml_error("[train]\nranks = 2\n[train]\nsteps = 3\n"), StartsWith("run.toml:3:"));
  // toml++ asks whether this character is a blank, and declares the answer unreachable (config.cc).
  EXPECT_THAT(toml_error("{ó"), StartsWith("run.toml:1:1: not TOML: "));
}

TEST(ConfigToml, NamesAFileThatCannotBeRead) {
  Config config;
  EXPECT_EQ(error_of([&] { apply_toml_file(config, "no/such.toml"); }),
            "no/such.toml: the configuration cannot be read: No such file or directory");
  EXPECT_THAT(error_of([&] { apply_toml_file(config, "/tmp"); }),
              StartsWith("/tmp: the configuration cannot be read"));
}

TEST(ConfigToml, ReadsAFile) {
  const auto path = std::filesystem::path(testing::TempDir()) / "starling_config_test.toml";
  std::ofstream(path) << "[train]\nranks = 3\n";
  Config config;
  apply_toml_file(config, path.string());
  EXPECT_EQ(config.spec.train.ranks, 3);
  EXPECT_EQ(origin_text(config.origins, "train.ranks"), path.string() + ":2:9");
  std::filesystem::remove(path);
}

TEST(ConfigSet, TakesTomlValuesAndBareTexts) {
  Config config;
  for (const char* assignment :
       {"model.widths=[784,10]", "optimizer.name=adam", "optimizer.lr = 1e-3", "data.augment=true",
        "run.dir=2026", "data.source=idx:/data/mnist", "model.init=\"a b.safetensors\"",
        "train.precision='fp64'", "comm.interface="}) {
    apply_set(config, assignment);
  }
  EXPECT_THAT(config.spec.model.widths, ElementsAre(784, 10));
  EXPECT_EQ(config.spec.optimizer.name, "adam");
  EXPECT_EQ(config.spec.optimizer.lr, 1e-3);
  EXPECT_TRUE(config.spec.data.augment);
  EXPECT_EQ(config.spec.run.dir, "2026");
  EXPECT_EQ(config.spec.data.source, "idx:/data/mnist");
  EXPECT_EQ(config.spec.model.init, "a b.safetensors");
  EXPECT_EQ(config.spec.train.precision, Precision::kFp64);
  EXPECT_EQ(origin_text(config.origins, "optimizer.name"), "--set");
}

TEST(ConfigSet, RefusesWhatIsWrong) {
  EXPECT_EQ(set_error("optimizer.lr"),
            "--set optimizer.lr: expected key=value, for example --set optimizer.lr=0.1");
  EXPECT_EQ(set_error("optimizer.rl=1"),
            "--set optimizer.rl=1: unknown key optimizer.rl: did you mean optimizer.lr?");
  EXPECT_EQ(set_error("train=1"),
            "--set train=1: train is a table, not a value: write its keys under [train]");
  EXPECT_EQ(set_error("train.ranks=two"), "--set train.ranks=two: train.ranks is an integer, not `two`");
  EXPECT_EQ(set_error("train.ranks=2\nseed=3"),
            "--set train.ranks=2\nseed=3: train.ranks is an integer, not `2\nseed=3`");
  EXPECT_EQ(set_error("train.ranks="), "--set train.ranks=: train.ranks is an integer, not ``");
  EXPECT_EQ(set_error("train.ranks={a=1}"),
            "--set train.ranks={a=1}: train.ranks is an integer, not a table");
  EXPECT_THAT(set_error("optimizer.name=adamm"), HasSubstr("did you mean \"adam\"?"));
}

TEST(ConfigSources, LaterOnesOverrideAndAreRemembered) {
  Config config = parse("[optimizer]\nlr = 0.1\nmomentum = 0.5\nweight_decay = 0.01\n");
  apply_set(config, "optimizer.lr=0.2");
  apply_set(config, "optimizer.momentum=0.6");
  apply_flag(config, *find_entry("optimizer.lr"), "--lr", "0.3");
  EXPECT_EQ(config.spec.optimizer.lr, 0.3);
  EXPECT_EQ(config.spec.optimizer.momentum, 0.6);
  EXPECT_EQ(origin_text(config.origins, "optimizer.lr"), "--lr");
  EXPECT_EQ(config.origins.at("optimizer.lr").kind, OriginKind::kFlag);
  EXPECT_EQ(origin_text(config.origins, "optimizer.momentum"), "--set");
  EXPECT_EQ(origin_text(config.origins, "optimizer.weight_decay"), "run.toml:4:16");
}

}  // namespace
}  // namespace starling
