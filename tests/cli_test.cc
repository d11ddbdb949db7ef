// The program `starling`, run as a user runs it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/describe.h"
#include "starling/spec/print.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

struct Outcome {
  int status = -1;  // of exit; 128 + the signal where one ended it
  std::string out;
  std::string err;
};

// Runs the program in `folder`, for at most two minutes.
Outcome run(const std::vector<std::string>& arguments, const std::string& folder) {
  const TempDir output;
  const std::string out = output.file("out"), err = output.file("err");
  std::vector<std::string> words = {STARLING_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int out_fd = ::open(out.c_str(), O_CREAT | O_WRONLY, 0600),
              err_fd = ::open(err.c_str(), O_CREAT | O_WRONLY, 0600);
    ::alarm(120);
    if (::chdir(folder.c_str()) == 0 && ::dup2(out_fd, 1) == 1 && ::dup2(err_fd, 2) == 2)
      ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_bytes(out), read_bytes(err)};
}

Outcome run(const std::vector<std::string>& arguments) {
  return run(arguments, STARLING_SOURCE_DIR);
}

// Checks that the program refuses `arguments` as wrong usage with exactly this message.
void expect_refused(const std::vector<std::string>& arguments, const std::string& message) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_EQ(outcome.err, "starling: error: " + message + "\n");
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST(Cli, HelpIsShortAndNamesTheCommands) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("config"), HasSubstr("--set"), HasSubstr("--dry-run")));
  EXPECT_LT(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 48);
  EXPECT_THAT(
      run({"config", "show", "--help"}).out,
      AllOf(HasSubstr("Usage: starling config show ["), HasSubstr("--lr RATE"), HasSubstr("-n,--ranks N")));
  EXPECT_THAT(run({"tour", "--help"}).out, HasSubstr("Usage: starling tour ["));
  EXPECT_THAT(run({"--version"}).out, StartsWith("starling "));
}

TEST(Cli, ConfigShowPrintsEveryValueWithItsOrigin) {
  const Outcome outcome = run(
      {"config", "show", "-c", "examples/digits.toml", "--set", "optimizer.momentum=0.8", "--lr", "0.01"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("# examples/digits.toml:"), HasSubstr("# --set\n"),
                                 HasSubstr("# --lr\n"), HasSubstr("# default\n")));
  Config again;
  apply_toml(again, outcome.out, "shown.toml");
  EXPECT_EQ(again.spec.train.ranks, 2);
  EXPECT_EQ(again.spec.optimizer.momentum, 0.8);
  EXPECT_EQ(again.spec.optimizer.lr, 0.01);
}

TEST(Cli, GlobalOptionsStandBeforeOrAfterTheCommand) {
  const Outcome after =
      run({"config", "show", "-c", "examples/digits.toml", "--set", "train.seed=9", "--json", "-q"});
  const Outcome before =
      run({"-q", "--json", "--set", "train.seed=9", "-c", "examples/digits.toml", "config", "show"});
  const Outcome between =
      run({"config", "--json", "-c", "examples/digits.toml", "show", "--set", "train.seed=9"});
  ASSERT_EQ(after.status, 0) << after.err;
  EXPECT_EQ(before.out, after.out) << before.err;
  EXPECT_EQ(between.out, after.out) << between.err;
  const auto line = nlohmann::json::parse(after.out);
  EXPECT_EQ(line.at("event"), "config");
  EXPECT_EQ(line.at("values").at("train").at("seed"), 9);
  EXPECT_EQ(line.at("origins").at("train.seed"), "--set");
}

TEST(Cli, SchemaIsWhatTheLibrarySays) {
  EXPECT_EQ(run({"config", "schema"}).out, json_schema());
  EXPECT_EQ(run({"config", "schema", "--markdown"}).out, schema_markdown());
  EXPECT_EQ(run({"config", "schema", "--markdown"}).out,
            read_bytes(STARLING_SOURCE_DIR "/docs/configuration.md"));
}

TEST(Cli, ExplainsOneKey) {
  EXPECT_THAT(run({"config", "explain", "optimizer.lr"}).out,
              AllOf(HasSubstr("Learning rate"), HasSubstr("0.05")));
  EXPECT_EQ(nlohmann::json::parse(run({"config", "explain", "train.ranks", "--json"}).out).at("flag"),
            "-n, --ranks N");
  expect_refused({"config", "explain", "optimizer.rl"},
                 "optimizer.rl: no such key: did you mean optimizer.lr?");
}

TEST(Cli, RefusesMistakesOfTheCommandLine) {
  expect_refused({"config", "show", "--modle", "mlp"}, "--modle: unknown flag: did you mean --model?");
  expect_refused({"config", "show", "--jsno"}, "--jsno: unknown flag: did you mean --json?");
  expect_refused({"confg", "show"}, "confg: unknown command: did you mean config?");
  expect_refused({"config", "shwo"}, "shwo: unknown command: did you mean show?");
  expect_refused({"config"}, "starling config: name a command: show, schema, explain; --help explains them");
  expect_refused({"config", "show", "extra"}, "extra: unexpected argument");
  expect_refused({"config", "show", "--lr", "fast"}, "--lr fast: optimizer.lr is a number, not `fast`");
  expect_refused({"config", "show", "--set", "train.rank=2"},
                 "--set train.rank=2: unknown key train.rank: did you mean train.ranks?");
  expect_refused({"config", "show", "-c", "none.toml"},
                 "none.toml: the configuration cannot be read: No such file or directory");
  EXPECT_EQ(run({}).status, 2);
  EXPECT_EQ(run({"config", "show", "--color", "blue"}).status, 2);
  EXPECT_EQ(run({"config", "show", "--set"}).status, 2);
  EXPECT_EQ(run({"config", "explain"}).status, 2);
}

TEST(Cli, LaunchTakesWhatFollowsAsAProgram) {
  const Outcome echo =
      run({"launch", "-n", "2", "-q", "sh", "-c", "echo rank $RANK of $WORLD_SIZE $1", "sh", "--json"});
  EXPECT_EQ(echo.status, 0) << echo.err;
  EXPECT_EQ(echo.out, "rank 0 of 2 --json\n");
  EXPECT_EQ(run({"launch", "--hosts", "a:2,b", "--dry-run", "./app", "--lr", "1"}).out,
            "would start 2 on a: ./app --lr 1\nwould start 1 on b: ./app --lr 1\n");
  // A command of ours takes the options itself.
  EXPECT_THAT(run({"launch", "--hosts", "a:2,b", "train", "--dry-run", "-c", "examples/digits.toml", "--set",
                   "train.global_batch=24", "-n", "3"})
                  .out,
              HasSubstr("with 3 ranks"));
  expect_refused({"launch", "--hosts", "a:2,b", "-n", "4", "./app"},
                 "launch.hosts: 3 slots on 2 hosts are too few for 4 processes; give hosts more, as in a:3, "
                 "or start fewer with -n");
  expect_refused({"launch", "--hostz", "a", "./app"}, "--hostz: unknown flag: did you mean --hosts?");
  expect_refused({"launch", "-n", "2"},
                 "starling launch: name the program to start: starling launch --hosts a,b:2 PROGRAM ARGUMENT "
                 "…, without --");
  EXPECT_THAT(run({"launch", "-n", "2", "no-such-program"}).err,
              StartsWith("starling: error: launch: \"no-such-program\" is no program of host "));
}

TEST(Cli, PlacesMistakesOfAFile) {
  const TempDir folder;
  const auto error_of = [&folder](const std::string& text) {
    write_bytes(folder.path() / "run.toml", text);
    const Outcome outcome = run({"config", "show", "-c", "run.toml"}, folder.path().string());
    EXPECT_EQ(outcome.status, 2);
    return outcome.err;
  };
  EXPECT_EQ(error_of("[train]\nrnaks = 2\n"),
            "starling: error: run.toml:2:1: unknown key train.rnaks: did you mean train.ranks?\n");
  EXPECT_EQ(error_of("[train]\nranks = \"two\"\n"),
            "starling: error: run.toml:2:9: train.ranks is an integer, not \"two\"\n");
  EXPECT_THAT(
      error_of("[model]\nname = \"resnet19\"\n"),
      StartsWith(
          "starling: error: run.toml:2:8: model.name = \"resnet19\" is unknown: did you mean \"resnet18\"?"));
  EXPECT_THAT(error_of("[train]\nranks = 3\n"),
              StartsWith("starling: error: run.toml:2:9: train.global_batch = 64 cannot be shared equally"));
  EXPECT_THAT(error_of("[train\nranks = 3\n"), StartsWith("starling: error: run.toml:1:7: not TOML: "));
}

TEST(Cli, ErrorsAreAlsoJsonWhereThatIsAsked) {
  const Outcome outcome = run({"--json", "config", "show", "--lr", "-1"});
  EXPECT_EQ(outcome.status, 2);
  const auto line = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(line.at("event"), "error");
  EXPECT_EQ(line.at("code"), "config");
  EXPECT_EQ(line.at("message"), "--lr -1: optimizer.lr = -1 is out of range: it must be at least 0");
}

TEST(Cli, MoreRanksThanCoresOnlyWarns) {
  const std::vector<std::string> many = {"config", "show", "-n", "60000", "--global-batch", "60000"};
  const Outcome outcome = run(many);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, AllOf(StartsWith("starling: warning: train.ranks = 60000"), HasSubstr("cores")));
  std::vector<std::string> quiet = many;
  quiet.push_back("-q");
  EXPECT_THAT(run(quiet).err, IsEmpty());
}

TEST(Cli, TrainingCommandsCheckTheirConfigurationFirst) {
  expect_refused({"trian"}, "trian: unknown command: did you mean train?");
  expect_refused({"eval", "--modle", "lenet5"}, "--modle: unknown flag: did you mean --model?");
  expect_refused({"train", "eval"}, "eval: unexpected argument");
  expect_refused({"data", "make"}, "starling data make: DIR is required");
  expect_refused({"zoo"}, "starling zoo: name a command: ls, show; --help explains them");
  for (const char* command : {"train", "eval", "verify"}) {
    expect_refused(
        {command, "-n", "2", "--global-batch", "65"},
        "--global-batch: train.global_batch = 65 cannot be shared equally by train.ranks = 2: use a batch "
        "of 64 or 66");
    expect_refused(
        {command, "--data", "digit"},
        "--data: data.source = \"digit\" is unknown: did you mean \"digits\"? use idx:DIR, cifar-bin:DIR, "
        "images:PATH, text:FILE, served:HOST:PORT, digits or grammar");
  }
  EXPECT_THAT(run({"--lr", "0.1", "train"}).err, HasSubstr("--lr: this command does not take the flag"));
}

TEST(Cli, ZooShowSaysWhatTheLayersOfAModelMove) {
  const Outcome outcome = run({"zoo", "show", "lenet5", "--batch", "100", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::vector<nlohmann::json> lines;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0]["name"], "conv1");
  EXPECT_EQ(lines[0]["kind"], "conv");
  EXPECT_DOUBLE_EQ(lines[0]["weight_mb"], 150 * 4 / 1e6);
  EXPECT_DOUBLE_EQ(lines[0]["input_mb"], 784 * 4 * 100 / 1e6);
  EXPECT_DOUBLE_EQ(lines[0]["gflop"], 150 * 784 * 6 * 100 / 1e9);
  EXPECT_EQ(lines[0]["fewer_bytes"], "data");
  EXPECT_EQ(lines[2]["fewer_bytes"], "model");  // fc1: 400 × 120 weights, 400 × 100 inputs
  EXPECT_EQ(lines[5]["event"], "volumes");
  EXPECT_EQ(lines[5]["model"], "lenet5");
  EXPECT_THAT(run({"zoo", "show", "nin"}).out, AllOf(HasSubstr("cccp8"), HasSubstr("|D| = 5793 MB")));
  expect_refused(
      {"zoo", "show", "nin", "--pixels", "38"},
      "model.name: nin needs pictures of at least 39×39 pixels, the data has 38×38; use lenet5 or a "
      "resnet, or larger pictures");
  expect_refused(
      {"zoo", "show", "gpt", "--pixels", "38"},
      "--pixels: gpt reads no pictures; its input follows from model.widths or model.tokens (--set)");
  expect_refused({"zoo", "show", "nin", "--batch", "0"}, "--batch: is 0, must be at least 1");
  EXPECT_THAT(run({"zoo", "show", "alexnt"}).err, HasSubstr("did you mean \"alexnet\"?"));
}

TEST(Cli, BenchLayersTimesEachAlgorithmAndPass) {
  const Outcome outcome = run({"bench", "layers", "--seconds", "0", "--json"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> measured;
  std::istringstream text(outcome.out);
  for (std::string line; std::getline(text, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    if (event["event"] != "layer_timing" || event["device"] != "cpu") continue;
    EXPECT_GT(event["min_ms"], 0);
    EXPECT_GE(event["median_ms"], event["min_ms"]);
    EXPECT_GE(event["max_ms"], event["median_ms"]);
    EXPECT_GT(event["gflop_per_s"], 0);
    measured.insert(event["algorithm"].get<std::string>() + " " + event["pass"].get<std::string>());
  }
  EXPECT_THAT(measured, testing::ElementsAre("direct backward", "direct forward", "im2col backward",
                                             "im2col forward", "product backward", "product forward"));
  EXPECT_EQ(run({"bench", "layers", "--seconds", "-1"}).status, 2);
}

}  // namespace
}  // namespace starling
