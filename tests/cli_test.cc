// Tests the program `starling` as a user runs it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/describe.h"
#include "starling/spec/print.h"
#include "starling/spec/strategy_table.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

struct Outcome {
  int status = -1;  // exit status, or 128 + the signal that ended the program
  std::string out;
  std::string err;
};

// Runs the program in `folder` for at most two minutes.
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

TEST(Cli, HelpListsTheCommandsInGroups) {
  const Outcome outcome = run({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("Usage: starling COMMAND [OPTIONS]\n"),
                                 HasSubstr("\nTrain and test:\n  train "), HasSubstr("\n  config "),
                                 HasSubstr("\nExamples:\n  starling train "), HasSubstr("--set KEY=VALUE"),
                                 HasSubstr("--dry-run"), Not(HasSubstr("manual")), Not(HasSubstr("--lr"))));
  EXPECT_LE(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 56);
}

TEST(Cli, HelpOfACommandShowsWhatConcernsIt) {
  EXPECT_THAT(run({"config", "show", "--help"}).out,
              AllOf(HasSubstr("Usage: starling config show [OPTIONS]\n"), HasSubstr("--lr RATE"),
                    HasSubstr("-n, --ranks N")));
  EXPECT_THAT(run({"eval", "--help"}).out,
              AllOf(HasSubstr("\nModel:\n  --model NAME"), HasSubstr("\nRanks and hosts:\n"),
                    Not(HasSubstr("--lr")), Not(HasSubstr("--exchange"))));
  EXPECT_THAT(run({"zoo", "show", "--help"}).out,
              AllOf(HasSubstr("Usage: starling zoo show [OPTIONS] MODEL\n"),
                    HasSubstr("\nArguments:\n  MODEL"), HasSubstr("--pixels N"), Not(HasSubstr("--model"))));
  EXPECT_THAT(run({"launch", "--help"}).out,
              AllOf(HasSubstr("PROGRAM [ARGUMENT…]"), HasSubstr("--hosts"), Not(HasSubstr("--exchange"))));
  EXPECT_THAT(run({"autoencoder", "--help"}).out,
              AllOf(HasSubstr("before the schedule is applied [0.001]"), HasSubstr("--threads N"),
                    Not(HasSubstr("--device")), Not(HasSubstr("--partition")), Not(HasSubstr("--share"))));
  // Flags that a help text leaves out are still accepted: commands share one configuration.
  EXPECT_EQ(run({"verify", "--dry-run", "--tensorboard"}).status, 0);
}

TEST(Cli, ADryRunSaysWhatItWouldDoAndDoesNothing) {
  const std::string few = "data.samples=64", tests = "data.test_samples=32";
  const TempDir folder;
  EXPECT_EQ(run({"train", "-q", "--model", "lenet5", "--data", "digits", "--steps", "1", "--set", few,
                 "--set", tests, "--run-dir", folder.file("run")})
                .status,
            0);
  EXPECT_EQ(run({"eval", "--dry-run", "-n", "2", folder.file("run")}).out,
            "would evaluate lenet5 (61,706 parameters) on digits (32 test samples) with 2 ranks\n");
  expect_refused({"eval", "--dry-run", "--model", "lenet5"},
                 "RUN_DIR: there are no weights: name a run folder, or a file of weights by --init FILE");
  EXPECT_EQ(run({"verify", "--dry-run", "-n", "2", "--model", "lenet5", "--data", "digits", "--global-batch",
                 "8", "--set", few, "--set", "verify.steps=3"})
                .out,
            "would compare 3 steps of lenet5 (61,706 parameters) on digits with 2 ranks with those of one "
            "process, in fp64\n");
  EXPECT_EQ(run({"train", "--dry-run", "--model", "lenet5", "--data", "digits", "--set", few}).out,
            "would train lenet5 (61,706 parameters) on digits (64 samples) with 1 rank, 64 samples a step\n");
  EXPECT_THAT(
      run({"train", "--dry-run", "-n", "2", "--mesh", "stage=2", "--data", "digits", "--set", few}).out,
      HasSubstr(" with 2 ranks (stage=2), "));
  EXPECT_THAT(
      run({"train", "--dry-run", "-n", "2", "--exchange", "parameter-server", "--data", "digits"}).out,
      HasSubstr(" on digits (8,192 samples) with 2 ranks and 1 server, "));
  EXPECT_EQ(run({"topics", "--dry-run"}).out, "would find topics in a generated corpus on 2 ranks\n");
  EXPECT_EQ(run({"factorize", "--dry-run"}).out,
            "would factorize generated entries with 16 factors on 2 ranks\n");
  EXPECT_EQ(run({"lasso", "--dry-run", "-n", "1"}).out, "would fit a lasso to generated samples on 1 rank\n");
  EXPECT_EQ(run({"bench", "comm", "--dry-run", "-n", "2", "--smallest", "64"}).out,
            "would measure the collectives of 2 ranks with 64 to 16,777,216 bytes for about 10 s\n");
}

TEST(Cli, ADryRunWarnsOfMoreRanksThanCores) {
  const std::vector<std::string> crowd = {"lasso", "--dry-run", "-n", "2000"};
  EXPECT_THAT(run(crowd).err, testing::MatchesRegex("warning: 2000 ranks of 1 thread on .* share cores.*\n"));
  EXPECT_THAT(run({"train", "--dry-run", "-n", "2000", "--global-batch", "2000", "--data", "digits"}).err,
              HasSubstr("the threads share cores"));
  EXPECT_THAT(run({"lasso", "--dry-run", "-n", "2000", "-q"}).err, IsEmpty());
  EXPECT_THAT(run({"lasso", "--dry-run", "-n", "1"}).err, IsEmpty());
}

TEST(Cli, HelpIsACommandToo) {
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "train"}).out, run({"train", "--help"}).out);
  EXPECT_EQ(run({"help", "config", "show"}).out, run({"config", "show", "--help"}).out);
  expect_refused({"help", "trian"}, "trian: unknown command: did you mean train?");
  expect_refused({"help", "config", "shwo"}, "shwo: unknown command: did you mean show?");
}

TEST(Cli, HelpOfACommandHasTheWordsAndDefaultsOfTheCommand) {
  for (const char* command : {"factorize", "lbfgs", "mcmc", "lasso", "topics", "place"}) {
    EXPECT_THAT(
        run({command, "--help"}).out,
        AllOf(HasSubstr("Number of processes that share the work [2]"),
              HasSubstr("Seed of all random numbers of the command [0]"), Not(HasSubstr("--threads-mode")),
              Not(HasSubstr("--device DEVICE")), Not(HasSubstr("dropout"))))
        << command;
  }
  EXPECT_THAT(run({"topics", "--help"}).out, AllOf(HasSubstr("1412.1576"), HasSubstr("1610.02496")));
  EXPECT_THAT(run({"factorize", "--help"}).out,
              AllOf(HasSubstr("Gemulla"), HasSubstr("over the entries [20]")));
  EXPECT_THAT(run({"lbfgs", "--help"}).out, HasSubstr("Dean et al."));
  EXPECT_THAT(
      run({"eval", "--help"}).out,
      AllOf(HasSubstr("Network to test."), HasSubstr("Data whose test part is used"),
            Not(HasSubstr("to train")), Not(HasSubstr("Training data")), Not(HasSubstr("--partition"))));
  EXPECT_THAT(run({"train", "--help"}).out,
              AllOf(HasSubstr("Network to train."), HasSubstr("--threads-mode")));
}

TEST(Cli, VersionNamesTheParts) {
  EXPECT_THAT(
      run({"--version"}).out,
      testing::MatchesRegex("starling [0-9.]+\ncommit +(unknown|[0-9a-f]{12})\nlibtorch +[0-9.]+[^\n]*\n"
                            "compiler +[^\n]+\ninstruction set +[^\n]+\n"));
}

// Returns the completions of the last word of `words`, by bash with the program's completion script.
std::string completed(const std::string& words) {
  const TempDir folder;
  const std::string script = folder.file("starling.bash");
  write_bytes(script, run({"completion", "bash"}).out);
  const std::string command = "source '" + script + "'; COMP_WORDS=(" + words +
                              "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _starling 2>'" + folder.file("err") +
                              "'; echo \"${COMPREPLY[*]}\" >'" + folder.file("out") + "'";
  const char* const argv[] = {"bash", "--norc", "-c", command.c_str(), nullptr};
  const pid_t child = ::fork();
  if (child == 0) {
    ::execvp(argv[0], const_cast<char* const*>(argv));
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return read_bytes(folder.file("out"));
}

TEST(Cli, BashCompletesCommandsFlagsAndWords) {
  EXPECT_EQ(completed("starling train --exch"), "--exchange\n");
  EXPECT_EQ(completed("starling train --exchange p"), "parallel-sgd parameter-server\n");
  EXPECT_EQ(completed("starling train --exchange = gos"), "gossip\n");  // bash splits --exchange=gos at "="
  EXPECT_EQ(completed("starling train --exchange ''"), std::string(exchange_names()) + "\n");
  EXPECT_EQ(completed("starling eval --exch"), "\n");
  EXPECT_EQ(completed("starling -c job.toml con"), "config\n");
  EXPECT_EQ(completed("starling config ''"), "show schema explain\n");
  EXPECT_EQ(completed("starling launch --hosts a,b:2 train --exch"), "--exchange\n");
  EXPECT_EQ(completed("starling train --set exchange.na"), "exchange.name=\n");
  EXPECT_EQ(completed("starling train --set exchange.name = ga"), "\n");
  EXPECT_EQ(completed("starling train --set exchange.name = go"), "gossip\n");
  EXPECT_EQ(completed("starling train --codec 1"), "1bit\n");
  EXPECT_EQ(completed("starling train --data i"), "idx: images:\n");
  EXPECT_EQ(completed("starling zoo show resnet5"), "resnet50\n");
  EXPECT_EQ(completed("starling completion ''"), "bash zsh fish\n");
  EXPECT_EQ(completed("starling config explain comm.t"), "comm.timeout_s\n");
}

TEST(Cli, WritesManualPagesAndScripts) {
  const TempDir share;
  ASSERT_EQ(run({"manual", share.path().string()}).status, 0);
  EXPECT_EQ(read_bytes(share.path() / "bash-completion/completions/starling"),
            run({"completion", "bash"}).out);
  EXPECT_THAT(read_bytes(share.path() / "zsh/site-functions/_starling"), StartsWith("#compdef starling\n"));
  EXPECT_THAT(read_bytes(share.path() / "fish/vendor_completions.d/starling.fish"), HasSubstr("-l exchange"));
  EXPECT_THAT(
      read_bytes(share.path() / "man/man1/starling.1"),
      AllOf(HasSubstr(".TH STARLING 1 "), HasSubstr(".BR starling\\-train (1)"), HasSubstr("EXIT STATUS")));
  EXPECT_THAT(read_bytes(share.path() / "man/man1/starling-config-show.1"), HasSubstr("\\-\\-lr RATE"));
  const std::string commands = read_bytes(STARLING_SOURCE_DIR "/docs/reference/commands.md");
  for (const auto& page : std::filesystem::directory_iterator(share.path() / "man/man1")) {
    std::string command = page.path().stem().string();
    std::replace(command.begin(), command.end(), '-', ' ');
    EXPECT_THAT(commands, HasSubstr("`" + command)) << "docs/reference/commands.md does not describe it";
  }
  const TempDir none;
  const Outcome planned = run({"manual", "--dry-run", "--json", none.path().string()});
  EXPECT_EQ(nlohmann::json::parse(planned.out)["dry_run"], true);
  EXPECT_TRUE(std::filesystem::is_empty(none.path()));
  const auto result = nlohmann::json::parse(run({"manual", "--json", none.path().string()}).out);
  EXPECT_EQ(result["event"], "result");
  EXPECT_GT(result["files"], 20);
  expect_refused({"completion", "tcsh"}, "starling completion: \"tcsh\" is unknown: use bash, zsh or fish");
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
            read_bytes(STARLING_SOURCE_DIR "/docs/reference/configuration.md"));
}

TEST(Cli, StrategiesPrintTheTablesOfTheManual) {
  EXPECT_EQ(run({"strategies", "--markdown"}).out, strategies_markdown());
  EXPECT_THAT(run({"strategies"}).out, Not(HasSubstr("`")));
  EXPECT_THAT(run({"strategies", "gossip"}).out, AllOf(StartsWith("gossip\n"), Not(HasSubstr("\nsgp\n"))));
  EXPECT_THAT(run({"strategies", "lbfgs"}).out, StartsWith("starling lbfgs\n"));
  EXPECT_THAT(run({"strategies", "mesh"}).out,
              AllOf(StartsWith("--mesh stage=S\n"), HasSubstr("\n--mesh tensor=T\n")));
  EXPECT_THAT(run({"strategies", "--json", "gossip"}).out, HasSubstr("{\"event\":\"result\",\"objects\":1}"));
  EXPECT_THAT(
      run({"strategies", "gosip"}).err,
      AllOf(StartsWith("starling: error: gosip: unknown strategy: did you mean gossip? The strategies are "
                       "all-reduce, "),
            HasSubstr(", sgp, ")));
}

TEST(Cli, ExplainsOneKey) {
  EXPECT_THAT(run({"config", "explain", "optimizer.lr"}).out,
              AllOf(HasSubstr("Learning rate"), HasSubstr("0.05")));
  const std::string both = run({"config", "explain", "train.ranks", "--lr"}).out;
  EXPECT_THAT(both, AllOf(StartsWith("train.ranks\n"), HasSubstr("\n\noptimizer.lr\n")));
  EXPECT_EQ(nlohmann::json::parse(run({"config", "explain", "train.ranks", "--json"}).out).at("flag"),
            "-n, --ranks N");
  EXPECT_EQ(run({"config", "explain", "--exchange"}).out, run({"config", "explain", "exchange.name"}).out);
  EXPECT_EQ(run({"config", "explain", "-n"}).out, run({"config", "explain", "train.ranks"}).out);
  expect_refused({"config", "explain"},
                 "starling config explain: name a key, a flag or a table, for example optimizer.lr, --lr or "
                 "optimizer");
  expect_refused({"config", "explain", "optimizer.rl"},
                 "optimizer.rl: no such key: did you mean optimizer.lr?");
}

TEST(Cli, RefusesMistakesOfTheCommandLine) {
  expect_refused({"config", "show", "--modle", "mlp"}, "--modle: unknown flag: did you mean --model?");
  expect_refused({"config", "show", "--jsno"}, "--jsno: unknown flag: did you mean --json?");
  expect_refused({"confg", "show"}, "confg: unknown command: did you mean config?");
  expect_refused({"config", "shwo"}, "shwo: unknown command: did you mean show?");
  expect_refused({"config"}, "starling config: name a command: show, schema, explain. --help describes them");
  expect_refused({"config", "show", "extra"}, "extra: unexpected argument");
  expect_refused({"config", "show", "--lr", "fast"}, "--lr fast: optimizer.lr is a number, not `fast`");
  expect_refused({"config", "show", "--set", "train.rank=2"},
                 "--set train.rank=2: unknown key train.rank: did you mean train.ranks?");
  expect_refused({"config", "show", "-c", "none.toml"},
                 "none.toml: the configuration cannot be read: No such file or directory");
  EXPECT_EQ(run({}).status, 2);
  EXPECT_THAT(run({"-q"}).err, StartsWith("starling: error: command line: name a command: train, eval, "));
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
  // A command of starling reads the options itself.
  EXPECT_THAT(run({"launch", "--hosts", "a:2,b", "train", "--dry-run", "-c", "examples/digits.toml", "--set",
                   "train.global_batch=24", "-n", "3"})
                  .out,
              HasSubstr("with 3 ranks"));
  expect_refused(
      {"launch", "--hosts", "a:2,b", "-n", "4", "./app"},
      "launch.hosts: 3 slots on 2 hosts are too few for 4 processes. Give hosts more slots, for example "
      "a:3, or start fewer processes with -n");
  expect_refused({"launch", "--hostz", "a", "./app"}, "--hostz: unknown flag: did you mean --hosts?");
  expect_refused({"launch", "-n", "2"},
                 "starling launch: name the program to start, without --: starling launch --hosts a,b:2 "
                 "PROGRAM ARGUMENT …");
  EXPECT_THAT(run({"launch", "-n", "2", "no-such-program"}).err,
              StartsWith("starling: error: launch: \"no-such-program\" is not a program on host "));
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
  EXPECT_THAT(error_of("[train]\nranks = 3\nglobal_batch = 64\n"),
              StartsWith("starling: error: run.toml:3:16: train.global_batch = 64 cannot be shared equally"));
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

TEST(Cli, JsonEndsInAResult) {
  const TempDir folder;
  const std::vector<std::vector<std::string>> commands = {
      {"zoo", "ls"},
      {"zoo", "show", "lenet5"},
      {"strategies"},
      {"plan", "memory", "--params", "1e9"},
      {"data", "make", folder.file("made"), "--set", "data.samples=8", "--set", "data.test_samples=8"},
      {"verify", "--model", "mlp", "--set", "model.widths=[784,10]", "--data", "digits", "--set",
       "data.samples=64", "--set", "data.test_samples=8", "--set", "verify.steps=1"},
      {"train", "--dry-run", "--set", "data.samples=64"},
      {"verify", "--dry-run", "--set", "data.samples=64"},
      {"factorize", "--dry-run", "-n", "2"},
      {"lbfgs", "--dry-run"},
      {"mcmc", "--dry-run"},
      {"lasso", "--dry-run"},
      {"autoencoder", "--dry-run"},
      {"topics", "--dry-run"},
      {"place", "--dry-run"},
      {"queue", "simulate", "--dry-run"},
      {"queue", "serve", "--dry-run", "--state", folder.file("not")},
      {"queue", "submit", "--dry-run", "--state", folder.file("not"), "true"},
      {"bench", "comm", "--dry-run", "-n", "2"},
      {"bench", "layers", "--dry-run"},
      {"bench", "scaling", "--dry-run"},
      {"compare", "--runs", "all-reduce,gossip", "--budget", "samples=64", "-n", "2", "--dry-run"},
      {"data", "make", folder.file("not"), "--dry-run"},
      {"data", "serve", "--dry-run"},
      {"ckpt", "export", folder.file("run"), folder.file("x.pt"), "--dry-run"},
      {"launch", "--dry-run", "-n", "2", "./app"}};
  for (std::vector<std::string> words : commands) {
    const std::string name = words[0] + " " + words.back();
    words.insert(words.begin(), "--json");
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << name << ": " << outcome.err;
    nlohmann::json last;
    std::istringstream text(outcome.out);
    for (std::string line; std::getline(text, line);) last = nlohmann::json::parse(line);
    EXPECT_EQ(last.value("event", ""), "result") << name << ": " << outcome.out;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("not")));
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
  expect_refused({"zoo"}, "starling zoo: name a command: ls, show. --help describes them");
  for (const char* command : {"train", "verify"}) {  // eval has no global batch
    expect_refused(
        {command, "-n", "2", "--global-batch", "65"},
        "--global-batch: train.global_batch = 65 cannot be shared equally by train.ranks = 2: use a batch "
        "of 64 or 66");
  }
  for (const char* command : {"train", "eval", "verify"}) {
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
  EXPECT_EQ(lines[2]["fewer_bytes"], "model");  // fc1 has 400 × 120 weights and 400 × 100 inputs
  EXPECT_EQ(lines[5]["event"], "result");
  EXPECT_EQ(lines[5]["model"], "lenet5");
  EXPECT_THAT(run({"zoo", "show", "nin"}).out, AllOf(HasSubstr("cccp8"), HasSubstr("|D| = 5793 MB")));
  expect_refused(
      {"zoo", "show", "nin", "--pixels", "38"},
      "model.name: nin needs pictures of at least 39×39 pixels, the data has 38×38; use lenet5 or a "
      "resnet, or larger pictures");
  expect_refused(
      {"zoo", "show", "gpt", "--pixels", "38"},
      "--pixels: gpt does not read pictures; its input follows from model.widths or model.tokens (--set)");
  expect_refused({"zoo", "show", "nin", "--batch", "0"}, "--batch: is 0, must be at least 1");
  expect_refused({"zoo", "show", "alexnt"},
                 "alexnt: unknown network: did you mean alexnet? `starling zoo ls` lists the networks");
  EXPECT_THAT(run({"zoo", "show", "x"}).err,
              StartsWith("starling: error: x: unknown network: use one of mlp, lenet5, "));
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
