#include "starling/spec/command_line.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Returns the configuration of a command line, as every command of `starling` reads it.
Config parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  CLI::App app;
  ConfigFlags flags;
  flags.add_sources(app);
  flags.add_flags(app);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& error) {
    throw ConfigError("command line", parse_error_in_words(error.what()));
  }
  return flags.read();
}

ProgramLine program_line(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return ProgramOptions("program").parse(static_cast<int>(arguments.size()), arguments.data());
}

std::string program_error_of(const std::vector<const char*>& arguments) {
  try {
    program_line(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
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
  const Config parsed = parse({"--model",
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
}

TEST(CommandLine, ACommandChoosesTheFlagsAndTheWordsOfItsHelp) {
  CLI::App app;
  ConfigFlags flags;
  flags.add_flags(app, {.sections = {Section::kRanks},
                        .keys = {"train.seed", "train.device", "optimizer.name", "schedule.name"},
                        .left_out = {"train.threads_mode", "train.device"},
                        .defaults = {{"train.ranks", "2"}},
                        .meanings = {{"train.seed", "Seed of the draws."},
                                     {"optimizer.name", "Update rule of the example."}}});
  EXPECT_EQ(app.get_option("--seed")->get_description(), "Seed of the draws [0]");
  EXPECT_EQ(app.get_option("--optimizer")->get_description(), "Update rule of the example [sgd]");
  EXPECT_THAT(app.get_option("--lr-schedule")->get_description(), HasSubstr("constant, step, cosine"));
  EXPECT_THAT(app.get_option("--ranks")->get_description(), testing::EndsWith(" [2]"));
  EXPECT_EQ(app.get_option("--threads-mode")->get_group(), "");  // taken, and not shown
  EXPECT_NE(app.get_option("--device")->get_group(), "");        // `keys` shows a flag in any case
  EXPECT_EQ(app.get_option("--lr")->get_group(), "");
  EXPECT_NE(app.get_option("--threads")->get_group(), "");
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

TEST(CommandLine, ALaterNumberOfEpochsReplacesEarlierSteps) {
  const auto by_set = parse({"--epochs", "3", "--set", "train.steps=9"});
  EXPECT_EQ(by_set.spec.train.steps, 0);
  EXPECT_EQ(by_set.spec.train.epochs, 3);
  EXPECT_FALSE(is_given(by_set.origins, "train.steps"));
  EXPECT_EQ(parse({"--steps", "9", "--set", "train.epochs=3"}).spec.train.steps, 9);
  EXPECT_EQ(parse({"--steps", "9", "--epochs", "3"}).spec.train.steps, 9);
}

TEST(CommandLine, TheLastOfEqualFlagsCounts) {
  const Config parsed = parse({"-n2", "--lr", "0.1", "--lr", "0.2"});
  EXPECT_EQ(parsed.spec.train.ranks, 2);
  EXPECT_EQ(parsed.spec.optimizer.lr, 0.2);
  EXPECT_THAT(parse({"--set", "model.widths=[1,2]"}).spec.model.widths, ElementsAre(1, 2));
}

TEST(ProgramOptions, WhatFollowsTwoDashesBelongsToTheProgram) {
  const ProgramLine line =
      program_line({"-n2", "-q", "--json", "--dry-run", "--color", "never", "--", "--lr", "x", "--", "word"});
  EXPECT_THAT(line.arguments, ElementsAre("--lr", "x", "--", "word"));
  EXPECT_EQ(line.config.spec.train.ranks, 2);
  EXPECT_FALSE(is_given(line.config.origins, "optimizer.lr"));
  EXPECT_TRUE(line.options.json);
  EXPECT_TRUE(line.options.dry_run);
  EXPECT_EQ(line.options.verbosity, -1);
  EXPECT_EQ(line.options.color, "never");
  EXPECT_FALSE(line.help || line.version);
  EXPECT_TRUE(program_line({"--help", "--", "x"}).help);
  EXPECT_TRUE(program_line({"--version"}).version);
  EXPECT_FALSE(program_line({"--", "--help"}).help);
}

TEST(ProgramOptions, RefusesWhatNobodyKnows) {
  EXPECT_EQ(program_error_of({"--epoch", "3"}),
            "--epoch: unknown flag: did you mean --epochs? Arguments of the program's own follow --");
  EXPECT_EQ(
      program_error_of({"--zzzzzzzzzzzz"}),
      "--zzzzzzzzzzzz: unknown flag. --help lists the flags, and --set key=value sets any key. Arguments "
      "of the program's own follow --");
  EXPECT_EQ(program_error_of({"file.txt"}),
            "file.txt: unexpected argument. Arguments of the program's own follow --");
  EXPECT_EQ(program_error_of({"--epochs"}), "command line: --epochs needs E");
}

TEST(ProgramOptions, RefusesModelsAndDataOfStarlingTrain) {
  EXPECT_EQ(
      program_error_of({"--data", "digits"}),
      "--data: data.source does not apply, because this program brings its own data: leave it out, or let "
      "the program call starling::Extensions::take_data()");
  EXPECT_EQ(program_error_of({"--set", "model.widths=[2,2]"}),
            "--set: model.widths does not apply, because this program brings its own model: leave it out");
  EXPECT_EQ(program_line({"--init", "a.safetensors"}).config.spec.model.init, "a.safetensors");
  EXPECT_EQ(program_line({"--set", "data.order=sequential"}).config.spec.data.order, Order::kSequential);
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
  EXPECT_STREQ(unknown_argument("--batch-size=64").what(),
               "--batch-size: unknown flag: did you mean --global-batch?");
  EXPECT_STREQ(unknown_argument("--np").what(), "--np: unknown flag: did you mean --ranks?");
  EXPECT_STREQ(unknown_argument("--jsno", {"--json"}).what(), "--jsno: unknown flag: did you mean --json?");
  EXPECT_THAT(unknown_argument("--lr").what(), HasSubstr("--lr: this command does not take the flag"));
  EXPECT_STREQ(unknown_argument("word").what(), "word: unexpected argument");
  EXPECT_THAT(unknown_argument("--zzzzzzzzzzzz").what(), HasSubstr("--help lists the flags"));
}

}  // namespace
}  // namespace starling
