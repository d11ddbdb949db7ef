#include "starling/spec/command_line.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParsedConfig parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string error_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CommandLine, ReadsTheStableFlags) {
  const ParsedConfig parsed = parse({"--model",
                                     "mlp",
                                     "--data=idx:/d",
                                     "-n",
                                     "4",
                                     "--threads",
                                     "2",
                                     "--epochs",
                                     "1.5",
                                     "--steps",
                                     "7",
                                     "--global-batch",
                                     "128",
                                     "--optimizer",
                                     "adamw",
                                     "--lr",
                                     "3e-4",
                                     "--lr-schedule",
                                     "cosine",
                                     "--precision",
                                     "bf16",
                                     "--seed",
                                     "5",
                                     "--order",
                                     "sequential",
                                     "--init",
                                     "a.safetensors",
                                     "--save",
                                     "b.safetensors",
                                     "--run-dir",
                                     "runs/x",
                                     "--resume",
                                     "never",
                                     "--threads-mode",
                                     "batch"});
  const RunSpec& spec = parsed.spec;
  EXPECT_EQ(spec.model.name, "mlp");
  EXPECT_EQ(spec.data.source, "idx:/d");
  EXPECT_EQ(spec.train.ranks, 4);
  EXPECT_EQ(spec.train.threads, 2);
  EXPECT_EQ(spec.train.epochs, 1.5);
  EXPECT_EQ(spec.train.steps, 7);
  EXPECT_EQ(spec.train.global_batch, 128);
  EXPECT_EQ(spec.optimizer.name, "adamw");
  EXPECT_EQ(spec.optimizer.lr, 3e-4);
  EXPECT_EQ(spec.schedule.name, "cosine");
  EXPECT_EQ(spec.train.precision, Precision::kBf16);
  EXPECT_EQ(spec.train.seed, 5u);
  EXPECT_EQ(spec.data.order, Order::kSequential);
  EXPECT_EQ(spec.model.init, "a.safetensors");
  EXPECT_EQ(spec.train.save, "b.safetensors");
  EXPECT_EQ(spec.run.dir, "runs/x");
  EXPECT_EQ(spec.run.resume, "never");
  EXPECT_EQ(spec.train.threads_mode, ThreadsMode::kBatch);
  EXPECT_EQ(origin_text(parsed.origins, "train.ranks"), "--ranks");
  EXPECT_TRUE(parsed.rest.empty());
}

TEST(CommandLine, OverridesInTheOrderOfSources) {
  const auto path = std::filesystem::path(testing::TempDir()) / "starling_command_line_test.toml";
  std::ofstream(path) << "[optimizer]\nlr = 0.1\nmomentum = 0.1\nbeta1 = 0.1\n";
  const std::string file = path.string();
  const auto parsed = parse(
      {"--lr", "0.3", "--set", "optimizer.lr=0.2", "--set", "optimizer.momentum=0.2", "-c", file.c_str()});
  EXPECT_EQ(parsed.spec.optimizer.lr, 0.3);
  EXPECT_EQ(parsed.spec.optimizer.momentum, 0.2);
  EXPECT_EQ(parsed.spec.optimizer.beta1, 0.1);
  std::filesystem::remove(path);
}

TEST(CommandLine, LeavesTheRestToTheProgram) {
  const auto parsed = parse({"file.txt", "-n2", "--depth", "3", "--lr", "0.1", "--lr", "0.2", "--", "--lr"});
  EXPECT_THAT(parsed.rest, testing::Contains("file.txt"));
  EXPECT_THAT(parsed.rest, testing::IsSupersetOf({"file.txt", "--depth", "3", "--lr"}));
  EXPECT_EQ(parsed.spec.train.ranks, 2);
  EXPECT_EQ(parsed.spec.optimizer.lr, 0.2);
}

TEST(CommandLine, SetTakesOneValueAndNoMore) {
  EXPECT_THAT(parse({"--set", "train.ranks=2", "word"}).rest, ElementsAre("word"));
  EXPECT_THAT(parse({"--set", "model.widths=[1,2]"}).spec.model.widths, ElementsAre(1, 2));
}

TEST(CommandLine, RefusesWrongValues) {
  EXPECT_EQ(error_of({"--lr", "fast"}), "--lr fast: optimizer.lr is a number, not `fast`");
  EXPECT_EQ(error_of({"--lr", "-1"}), "--lr -1: optimizer.lr = -1 is out of range: it must be at least 0");
  EXPECT_EQ(error_of({"-n", "0"}),
            "--ranks 0: train.ranks = 0 is out of range: it must be at least 1 and at most 65536");
  EXPECT_THAT(error_of({"--model", "resnet81"}), HasSubstr("did you mean \"resnet18\"?"));
  EXPECT_THAT(error_of({"--lr"}), HasSubstr("--lr"));
  EXPECT_THAT(error_of({"-c", "no.toml"}), HasSubstr("no.toml: the configuration cannot be read"));
}

TEST(CommandLine, NamesTheNearFlag) {
  EXPECT_STREQ(unknown_argument("--modle=x").what(), "--modle: unknown flag: did you mean --model?");
  EXPECT_STREQ(unknown_argument("--jsno", {"--json"}).what(), "--jsno: unknown flag: did you mean --json?");
  EXPECT_THAT(unknown_argument("--lr").what(), HasSubstr("--lr: this command does not take the flag"));
  EXPECT_STREQ(unknown_argument("word").what(), "word: unexpected argument");
  EXPECT_THAT(unknown_argument("--zzzzzzzzzzzz").what(), HasSubstr("--help lists the flags"));
}

}  // namespace
}  // namespace starling
