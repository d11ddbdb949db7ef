// Where the time of a run went, over folders that the tests make.
#include "starling/report/why.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "starling/base/error.h"
#include "starling/telemetry/to_json.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

// A run folder with the events of one start after another.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("starling-why-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;

  const fs::path& path() const { return path_; }
  std::string text() const { return path_.string(); }
  void write(const std::string& file, const std::string& content) const {
    std::ofstream(path_ / file, std::ios::binary | std::ios::app) << content;
  }
  // Adds an event at `time`.
  void add(const Event& event, double time = 0, const std::string& run_id = "a") const {
    write("events.jsonl", to_json(event, {time, run_id}) + "\n");
  }

 private:
  fs::path path_;
};

RunStarted two_ranks() {
  RunStarted run;
  run.model = "mlp";
  run.ranks = run.local_processes = 2;
  run.local_cores = 2;
  run.global_batch = 64;
  run.hosts = {"a", "a"};
  run.startup_s = 1;
  return run;
}

StepDone step(int64_t number, double compute_s, double exposed_comm_s, double data_wait_s) {
  StepDone done;
  done.step = number;
  done.step_s = compute_s + exposed_comm_s + data_wait_s;
  done.compute_s = compute_s;
  done.exposed_comm_s = exposed_comm_s;
  done.data_wait_s = data_wait_s;
  return done;
}

// The result of 10 steps of 2 ranks in 20 s: 8 s computation, 5 s exchange, 1 s data, 3 s evaluation and 1 s
// checkpoints on rank 0.
RunResult ten_steps() {
  RunResult result;
  result.steps = 10;
  result.ranks = 2;
  result.exchange = "all-reduce";
  result.wall_s = 20;
  result.compute_s = 8;
  result.exposed_comm_s = 5;
  result.data_wait_s = 1;
  result.evaluation_s = 3;
  result.checkpoint_s = 1;
  result.exchange_s = {{"gradients", 4}, {"agreement", 1}};
  result.rank_times = {{0, 8, 5, 1}, {1, 11, 2, 1}};
  return result;
}

// The seconds of the categories in their order.
std::vector<double> parts(const TimeAccount& account) {
  return {account.seconds, account.seconds + kTimeUses};
}

std::string error_of(const std::string& folder) {
  try {
    why(folder);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

bool mentions(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST(TimeAccount, CategoriesAddUpToTheTimeOfTheRun) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 122);  // 2 s after the 20 s of the loop
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.wall_s, 23);  // with 1 s of start-up
  //                                     compute wait exchange data eval saves recovery start end other
  EXPECT_EQ(parts(a), (std::vector<double>{8, 3, 2, 1, 3, 1, 0, 1, 2, 2}));
  ASSERT_TRUE(a.late);
  EXPECT_EQ(a.late->rank, 1);
  EXPECT_EQ(a.late->host, "a");
  EXPECT_FALSE(a.late->by_data);
  EXPECT_DOUBLE_EQ(a.late->share, 3.0 / 23);
  EXPECT_DOUBLE_EQ(a.late->slowness, 12.0 / 9);
  EXPECT_EQ(a.phases, (std::map<std::string, double>{{"gradients", 4}, {"agreement", 1}}));
  EXPECT_TRUE(a.ended);
  EXPECT_EQ(a.missing.size(), 1u);  // config.toml
}

TEST(TimeAccount, AKilledRunIsCountedByItsEvents) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  folder.add(step(1, 2, 1, 0.5), 104);
  folder.add(EvalDone{.step = 1, .samples = 100, .seconds = 1.5}, 106);
  StepDone saved = step(2, 2, 1, 0);
  saved.checkpoint_s = 0.5;
  folder.add(saved, 110);
  folder.write("events.jsonl", R"({"event":"step","step":3,"com)");
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.steps, 2);
  EXPECT_EQ(a.wall_s, 11);
  EXPECT_EQ(parts(a), (std::vector<double>{4, 0, 2, 0.5, 1.5, 0.5, 0, 1, 0, 1.5}));
  EXPECT_FALSE(a.ended);
  EXPECT_FALSE(a.late);
  EXPECT_TRUE(mentions(a.missing, "also by Ctrl-C or SIGTERM"));
  EXPECT_TRUE(mentions(a.missing, "One line of events.jsonl cannot be read"));
  EXPECT_TRUE(mentions(a.missing, "The phases of the exchange are unknown"));
  EXPECT_FALSE(mentions(a.missing, "killed"));  // the run may still train
  const RunAnswer answer = why(folder.text());
  EXPECT_NE(to_text(answer, false, 0).find("The run is still training, or its processes were killed."),
            std::string::npos);
  EXPECT_NE(to_text(answer, false, 0).find("its phases are unknown"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(to_json(answer))["phases"].is_null());
}

TEST(TimeAccount, AnOldFolderSaysWhatIsMissing) {
  const Folder folder;
  folder.write("events.jsonl",
               R"({"event":"run","model":"mlp","ranks":2,"threads":1,"global_batch":64})"
               "\n"
               R"({"event":"step","step":1,"step_s":4,"compute_s":3,"exposed_comm_s":1,"data_wait_s":0})"
               "\n"
               R"({"event":"eval","step":1,"loss":1,"samples":10})"
               "\n"
               R"({"event":"checkpoint","step":1,"path":"p","seconds":1})"
               "\n"
               R"({"event":"result","steps":1,"wall_s":10,"compute_s":3,"exposed_comm_s":1,"data_wait_s":0})"
               "\n");
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.wall_s, 10);
  EXPECT_EQ(parts(a), (std::vector<double>{3, 0, 1, 0, 0, 0, 0, 0, 0, 6}));
  EXPECT_TRUE(mentions(a.missing, "The times of each rank are missing"));
  EXPECT_TRUE(mentions(a.missing, "The time of evaluations is missing"));
  EXPECT_TRUE(mentions(a.missing, "by which checkpoints delayed the run is missing"));
  EXPECT_TRUE(mentions(a.missing, "The start-up is missing"));
  EXPECT_TRUE(mentions(a.missing, "The phases of the exchange are unknown"));
  EXPECT_TRUE(mentions(a.missing, "a new run says it"));
  EXPECT_DOUBLE_EQ(*a.one_process_s, 2 * 3 + 6);  // by the computation of the leading rank
}

TEST(TimeAccount, StartsOfAResumedRunAddUp) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  RunStarted resumed = two_ranks();
  resumed.first_step = 10;
  folder.add(Message{}, 999, "b");  // "resuming after …" comes before the run begins
  folder.add(resumed, 1000, "b");
  RunResult more = ten_steps();
  more.steps = 30;
  more.first_step = 10;
  more.rank_times = {{0, 8, 5, 1}, {1, 8, 5, 1}};
  folder.add(more, 1020, "b");
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.starts, 2);
  EXPECT_EQ(a.steps, 30);
  EXPECT_EQ(a.wall_s, 42);  // without the time between the starts
  EXPECT_EQ(a.of(TimeUse::kComputation), 16);
  EXPECT_EQ(a.of(TimeUse::kWaiting), 3);
  EXPECT_EQ(a.of(TimeUse::kExchange), 7);
  EXPECT_EQ(std::accumulate(a.seconds, a.seconds + kTimeUses, 0.0), a.wall_s);
}

TEST(TimeAccount, ANewLeaderContinuesTheSameStart) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  folder.add(step(1, 2, 0, 0), 102);
  RanksLost lost;
  lost.ranks = {1};
  lost.seconds = 4;
  folder.add(two_ranks(), 106);  // the event of the rank that leads now
  folder.add(lost, 106);
  folder.add(step(2, 2, 0, 0), 108);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.starts, 1);
  EXPECT_EQ(a.wall_s, 9);
  EXPECT_EQ(a.of(TimeUse::kRecovery), 4);
  EXPECT_EQ(a.of(TimeUse::kOther), 0);
}

TEST(TimeAccount, OneRankHasNoExchange) {
  const Folder folder;
  RunStarted one = two_ranks();
  one.ranks = one.local_processes = 1;
  one.hosts = {"a"};
  folder.add(one, 100);
  RunResult result = ten_steps();
  result.exposed_comm_s = 0;
  result.exchange_s.clear();
  result.rank_times = {{0, 8, 0, 1}};
  folder.add(result, 120);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_FALSE(a.late);
  EXPECT_FALSE(a.one_process_s);
  EXPECT_EQ(a.one_process_why, "This run is one process.");
  EXPECT_EQ(a.of(TimeUse::kExchange), 0);
}

TEST(TimeAccount, TheHostOfALateRankIsNamedAlsoIfItLeads) {
  const Folder folder;
  RunStarted run = two_ranks();
  run.hosts = {"node-a", "node-b"};
  folder.add(run, 100);
  RunResult result = ten_steps();
  result.rank_times = {{0, 8, 5, 1}, {1, 4, 10, 0}};
  folder.add(result, 120);
  const RunAnswer answer = why(folder.text());
  const TimeAccount& a = answer.account;
  ASSERT_TRUE(a.late);
  EXPECT_EQ(a.late->rank, 0);
  EXPECT_EQ(a.hosts, 2);
  EXPECT_EQ(a.of(TimeUse::kWaiting), 0);  // the leading rank does not wait for itself
  EXPECT_DOUBLE_EQ(a.late->share, 5.0 / 21);
  EXPECT_NE(to_text(answer, false, 0).find("The other ranks wait 23.8 % of the time for rank 0 on node-a"),
            std::string::npos);
  EXPECT_EQ(answer.advice.rule, "late-rank");
  EXPECT_EQ(answer.advice.advice.what, "ssh node-a starling doctor");
}

// Two starts, whose first has the hosts `first` and whose second has the hosts `second`. Rank `late` is late
// in the second, and rank 1 in the first.
TimeAccount two_starts(const Folder& folder, const std::vector<std::string>& first,
                       const std::vector<std::string>& second, int64_t late = 1) {
  RunStarted run = two_ranks();
  run.hosts = first;
  folder.add(run, 100, "a");
  RunResult result = ten_steps();
  result.strategy = {{"step_bytes", 7}};
  folder.add(result, 120, "a");
  run.hosts = second;
  run.first_step = 10;
  folder.add(run, 200, "b");
  result.first_step = 10;
  result.steps = 12;
  result.strategy = {{"step_bytes", 400}};
  result.rank_times = {{0, 8, 5, 1}, {1, 11, 1, 1}};
  if (late == 0) result.rank_times = {{0, 10, 1, 1}, {1, 8, 5, 1}};
  folder.add(result, 220, "b");
  return why(folder.text()).account;
}

TEST(TimeAccount, TheHostOfALateRankIsThatOfItsStarts) {
  {
    const TimeAccount a = two_starts(Folder(), {"a", "b"}, {"a", "b"});
    ASSERT_TRUE(a.late);
    EXPECT_EQ(a.late->host, "b");
    EXPECT_EQ(a.of(TimeUse::kWaiting), 3 + 4);
    EXPECT_EQ(a.statistics_steps, 2);
    EXPECT_EQ(a.bytes_per_rank_and_step(), 100);
  }
  EXPECT_EQ(two_starts(Folder(), {"a", "b"}, {"a", "c"}).late->host, "");  // the starts disagree
  EXPECT_EQ(two_starts(Folder(), {}, {"a", "c"}).late->host, "c");
  // Rank 1 was late in the first start only. The rank for which the others waited longest is named.
  const TimeAccount turns = two_starts(Folder(), {"a", "b"}, {"c", "d"}, 0);
  EXPECT_EQ(turns.late->rank, 1);
  EXPECT_EQ(turns.late->host, "b");
}

TEST(TimeAccount, ATextThatIsNoHostIsUnknown) {
  EXPECT_EQ(two_starts(Folder(), {"a", "b\nTry first: x"}, {"a", "b\nTry first: x"}).late->host, "");
}

TEST(TimeAccount, ARankThatWasLostEarlyDoesNotHideALateRank) {
  const Folder folder;
  RunStarted run = two_ranks();
  run.ranks = run.local_processes = run.local_cores = 3;
  run.hosts = {"a", "b", "c"};
  folder.add(run, 100, "a");
  RunResult result = ten_steps();  // a short start with three ranks
  result.wall_s = 3;
  result.compute_s = 1;
  result.exposed_comm_s = 1;
  result.data_wait_s = result.evaluation_s = result.checkpoint_s = 0;
  result.rank_times = {{0, 1, 1, 0}, {1, 1.5, 0.5, 0}, {2, 1, 1, 0}};
  folder.add(result, 103, "a");
  run.ranks = run.local_processes = 2;
  run.hosts = {"a", "b"};
  folder.add(run, 200, "b");
  folder.add(ten_steps(), 220, "b");
  const TimeAccount a = why(folder.text()).account;
  ASSERT_TRUE(a.late);
  EXPECT_EQ(a.late->rank, 1);
  EXPECT_EQ(a.late->host, "b");
  EXPECT_EQ(a.of(TimeUse::kWaiting), 0.5 + 3);
  EXPECT_NE(a.one_process_why.find("the number of ranks times"), std::string::npos);
}

TEST(TimeAccount, PhasesOfAFolderWithAKilledStartAreUnknown) {
  const Folder folder;
  folder.add(two_ranks(), 100, "a");
  folder.add(step(1, 2, 1, 0.5), 104, "a");
  folder.add(two_ranks(), 200, "b");
  folder.add(ten_steps(), 220, "b");
  const TimeAccount a = why(folder.text()).account;
  EXPECT_FALSE(a.phases_known);
  EXPECT_TRUE(a.phases.empty());
  EXPECT_TRUE(mentions(a.missing, "The phases of the exchange are unknown, because a run reports them when"));
}

TEST(TimeAccount, OthersThatDoNothingLeaveTheSlownessUnknown) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  RunResult result = ten_steps();
  result.rank_times = {{0, 0, 9, 0}, {1, 9, 0, 0}};
  folder.add(result, 120);
  const RunAnswer answer = why(folder.text());
  ASSERT_TRUE(answer.account.late);
  EXPECT_EQ(answer.account.late->slowness, 0);
  EXPECT_NE(to_text(answer, false, 0).find("which computes longer\n"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(to_json(answer))["late_rank"].contains("slowness"));
}

TEST(TimeAccount, WorkersOfABoundedStalenessWaitForALateRank) {
  for (const char* staleness : {"0", "4"}) {
    const Folder folder;
    folder.write("config.toml",
                 std::string("[exchange]\nname = \"parameter-server\"\nstaleness = \"") + staleness + "\"\n");
    folder.add(two_ranks(), 100);
    folder.add(ten_steps(), 120);
    EXPECT_TRUE(why(folder.text()).account.late) << staleness;
  }
}

TEST(TimeAccount, ARankThatWaitsForItsDataIsLateByData) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  RunResult result = ten_steps();
  result.rank_times = {{0, 8, 5, 1}, {1, 8, 1, 5}};
  folder.add(result, 120);
  const TimeAccount a = why(folder.text()).account;
  ASSERT_TRUE(a.late);
  EXPECT_TRUE(a.late->by_data);
}

TEST(TimeAccount, WorkersOfAnAsynchronousServerDoNotWaitForEachOther) {
  const Folder folder;
  folder.write("config.toml", "[exchange]\nname = \"parameter-server\"\nstaleness = \"inf\"\n");
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  const TimeAccount a = why(folder.text()).account;
  ASSERT_TRUE(a.spec);
  EXPECT_FALSE(a.late);
  EXPECT_EQ(a.of(TimeUse::kExchange), 5);
}

TEST(TimeAccount, OneProcessIsEstimatedByATypicalRank) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  const TimeAccount a = why(folder.text()).account;
  ASSERT_TRUE(a.one_process_s);
  // 2 · (8 + 3) of computation and evaluation, 1 data, 1 checkpoints, 1 start-up, 2 other
  EXPECT_DOUBLE_EQ(*a.one_process_s, 27);
  EXPECT_NE(a.one_process_why.find("2 times the computation of a typical rank"), std::string::npos);
}

TEST(TimeAccount, OneProcessIsNotKnownIfRanksShareCores) {
  const Folder folder;
  RunStarted run = two_ranks();
  run.local_cores = 1;
  folder.add(run, 100);
  folder.add(ten_steps(), 120);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_FALSE(a.one_process_s);
  EXPECT_NE(a.one_process_why.find("not known, because ranks shared cores"), std::string::npos);
}

TEST(TimeAccount, ClocksThatDisagreeLeaveNoNegativeTime) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  RunResult result = ten_steps();
  result.wall_s = 10;  // less than its parts
  folder.add(result, 90);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.wall_s, 19);
  for (const double part : parts(a)) EXPECT_GE(part, 0);
}

TEST(Why, JsonHasWhatTheTextSays) {
  const Folder folder;
  folder.write("config.toml", "[train]\nranks = 2\n");
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 122);
  const RunAnswer answer = why(folder.text());
  const auto json = nlohmann::json::parse(to_json(answer));
  EXPECT_EQ(json["event"], "why");
  EXPECT_EQ(json["wall_s"], 23);
  EXPECT_EQ(json["time"]["waiting_s"], 3);
  EXPECT_EQ(json["time"]["startup_s"], 1);
  EXPECT_EQ(json["phases"]["gradients"], 4);
  EXPECT_EQ(json["late_rank"]["rank"], 1);
  EXPECT_EQ(json["late_rank"]["cause"], "computation");
  EXPECT_EQ(json["one_process"]["seconds"], 28 + 1);
  EXPECT_EQ(json["advice"]["rule"], answer.advice.rule);
  EXPECT_EQ(json["advice"]["try"], answer.advice.advice.what);
  EXPECT_EQ(json["missing"], nlohmann::json::array());
  const std::string text = to_text(answer, false, 100);
  for (const char* part :
       {"10 steps in 23 s on 2 ranks", "computation", "for rank 1 on a, which computes longer", "gradients",
        "One process", "Try first: "})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("recovery"), std::string::npos);
}

TEST(Why, BadInputIsAnErrorThatNamesTheRemedy) {
  const Folder folder;
  const std::string none = (folder.path() / "none").string();
  EXPECT_EQ(error_of(none), "RUN_DIR: there is no folder " + none + "; give the folder of a run");
  folder.write("file", "x");
  EXPECT_NE(error_of((folder.path() / "file").string()).find("is no folder"), std::string::npos);
  EXPECT_NE(error_of(folder.text()).find("it has no events.jsonl"), std::string::npos);
  folder.write("index.html", "x");
  EXPECT_NE(error_of(folder.text()).find("the report of several runs"), std::string::npos);
  folder.write("manifest.json", "{}");
  EXPECT_NE(error_of(folder.text()).find("is a checkpoint"), std::string::npos);
  folder.write("events.jsonl", "no event\n");
  EXPECT_NE(error_of(folder.text()).find("has no event of a run that began"), std::string::npos);
}

TEST(Why, EventsAreReadFromARegularFileOnly) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder.path() / "events.jsonl").c_str(), 0600), 0);
  EXPECT_NE(error_of(folder.text()).find("events.jsonl is no regular file"), std::string::npos);
  fs::remove(folder.path() / "events.jsonl");
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  ASSERT_EQ(::mkfifo((folder.path() / "config.toml").c_str(), 0600), 0);
  EXPECT_FALSE(why(folder.text()).account.spec);
}

TEST(Why, AVeryLongLineIsCountedAndLeftOut) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  const std::string event = R"({"event":"step","step_s":4,"compute_s":3,"x":")";
  folder.write("events.jsonl", event + std::string(size_t{17} << 20, 'x') + "\"}\n");
  folder.write("events.jsonl", event + std::string(size_t{1} << 20, 'x') + "\"}\n");  // is read
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.steps, 1);
  EXPECT_TRUE(mentions(a.missing, "One line of events.jsonl cannot be read"));
}

TEST(Why, ARunWithoutTimeHasNoNumbersThatAreNone) {
  const Folder folder;
  folder.write("events.jsonl", "{\"event\":\"run\",\"ranks\":2}\n{\"event\":\"step\",\"step\":1}\n");
  const RunAnswer answer = why(folder.text());
  EXPECT_EQ(answer.account.wall_s, 0);
  EXPECT_EQ(to_text(answer, false, 0).find("nan"), std::string::npos);
  EXPECT_EQ(to_json(answer).find("nan"), std::string::npos);
}

TEST(Why, LinesThatAreNoEventsAreCounted) {
  const Folder folder;
  folder.add(two_ranks(), 100);
  std::string deep = R"({"event":"result","strategy":)";
  deep += std::string(100'000, '[');
  for (const std::string& line :
       {std::string("x"), std::string("[1]"), std::string("{}"), deep, std::string(R"({"event":1})"),
        std::string(R"({"event":"run","ranks":"2"})"), std::string(R"({"event":"eval","samples":1e300})")})
    folder.write("events.jsonl", line + "\n");
  folder.write("events.jsonl", R"({"event":"step","step_s":null,"compute_s":-1,"data_wait_s":"x"})"
                               "\n");
  folder.add(ten_steps(), 120);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.starts, 1);
  EXPECT_TRUE(mentions(a.missing, "7 lines of events.jsonl cannot be read"));
}

TEST(Why, AnEventBehindAHalfWrittenLineIsRead) {
  const Folder folder;
  folder.write("events.jsonl", R"({"event":"step","st)");
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  const TimeAccount a = why(folder.text()).account;
  EXPECT_EQ(a.steps, 10);
  EXPECT_TRUE(mentions(a.missing, "One line of events.jsonl cannot be read"));
}

TEST(Why, AConfigurationThatCannotBeReadIsSaid) {
  const Folder folder;
  folder.write("config.toml", "[train]\nmesh = \"stage=3\"\n");
  folder.add(two_ranks(), 100);
  folder.add(ten_steps(), 120);
  const RunAnswer answer = why(folder.text());
  EXPECT_FALSE(answer.account.spec);
  EXPECT_TRUE(mentions(answer.account.missing, "config.toml is missing or cannot be read"));
}

}  // namespace
}  // namespace starling
