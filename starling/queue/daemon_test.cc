// The daemon with real processes, which is killed at every transition of every job.
#include "starling/queue/daemon.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <set>
#include <thread>

#include "starling/base/error.h"
#include "starling/telemetry/unix_time.h"
#include "starling/testing/manual_clock.h"
#include "starling/testing/temp_dir.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using testing::HasSubstr;

void pause_briefly() {
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

// Waits until the condition holds, for at most a minute. Returns whether it holds.
bool wait_until(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    pause_briefly();
  }
  return true;
}

// A queue on two slots of this host, whose jobs are shell scripts.
class DaemonTest : public testing::Test {
 protected:
  DaemonTest() : folder_(dir_.file("queue"), true) {
    store().put_settings({.hosts = {{kThisHost, 2}}, .users = {{"ada", {1, 5}}}, .half_life_s = 3600});
  }
  ~DaemonTest() override { end_keepers(); }

  // Kills the keepers, so that a test that fails leaves no process behind. Their launchers end with them.
  void end_keepers() const {
    for (int id = 1; id < 20; ++id)
      for (int attempt = 1; attempt < 10; ++attempt) end_keeper({folder_.job_folder(id), attempt});
  }
  static void end_keeper(const AttemptFiles& files) {
    try {
      if (const auto keeper = claim_of(files)) send_signal(*keeper, SIGKILL);
    } catch (const Error&) {  // a damaged claim names no process
    }
  }

  // A connection of its own for each use, because a process must not use a connection after fork().
  QueueStore store() const { return QueueStore(folder_.database(), true); }

  int64_t submit(const std::string& script, int slots = 1, int priority = 0) const {
    JobRecord job;
    job.user = "ada";
    job.slots = slots;
    job.priority = priority;
    job.words = {"sh", "-c", script};
    job.folder = dir_.path();
    job.environment = {"PATH=/usr/bin:/bin"};
    return store().submit(job, unix_time_s());
  }

  JobRecord job(int64_t id) const { return store().job(id).value(); }

  static DaemonOptions options() {
    DaemonOptions options;
    options.policy.min_run_s = options.policy.patience_s = options.policy.save_s = 0;
    options.program = "/bin/sh";
    options.argv = [](const JobRecord& job) { return job.words; };
    options.now_s = unix_time_s;
    static const SystemClock clock;
    options.clock = &clock;
    sigemptyset(&options.mask);
    return options;
  }

  // Runs a daemon in a process of its own until no job is left. The process is killed at the point number
  // `kill_at`. Returns its number.
  pid_t start_daemon(int kill_at) const {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    try {
      int passed = 0;
      const auto at = [&](const std::string& point) {
        write_bytes(dir_.path() / fmt::format("point-{}", passed), point);
        if (passed++ == kill_at) ::raise(SIGKILL);
      };
      const DaemonLock lock(folder_);
      QueueStore jobs(folder_.database(), false);
      jobs.at = at;
      DaemonOptions how = options();
      how.at = at;
      Daemon daemon(folder_, jobs, how);
      ::_exit(wait_until([&] { return daemon.turn() == 0; }) ? 0 : 2);
    } catch (const std::exception& error) {
      fmt::print(stderr, "the daemon failed: {}\n", error.what());
      ::_exit(1);
    }
  }

  std::string text(const std::string& name) const {
    return std::filesystem::exists(dir_.file(name)) ? read_bytes(dir_.file(name)) : "";
  }

  TempDir dir_;
  QueueFolder folder_;
};

// A job that needs two runs: the first ends at SIGTERM with a checkpoint, the second finds the checkpoint.
// Two runs at once would make it fail.
constexpr const char* kResumes = R"(
  mkdir one-at-a-time || exit 9
  trap 'touch checkpoint; rmdir one-at-a-time; exit 143' TERM
  echo begins >> resumes.log
  [ -e checkpoint ] && { rmdir one-at-a-time; exit 0; }
  while :; do sleep 0.01; done)";

constexpr const char* kStopsLater =
    "trap 'exit 143' TERM; echo begins >> waits.log; while :; do sleep 0.01; done";

// Runs five jobs to their ends: one succeeds, one fails, one is cancelled while it runs, and one makes room
// for the last. The daemon is killed at point `kill_at` and started again. Returns the number of points that
// were passed before.
class DaemonKill : public DaemonTest {
 protected:
  ~DaemonKill() override {
    if (daemon_ <= 0) return;
    ::kill(daemon_, SIGKILL);
    ::waitpid(daemon_, nullptr, 0);
  }

  void run(int kill_at) {
    const int64_t succeeds = submit("echo begins >> succeeds.log");
    const int64_t fails = submit("echo begins >> fails.log; exit 3");
    const int64_t waits = submit(kStopsLater);
    const int64_t resumes = submit(kResumes, 2);
    int64_t urgent = 0;
    daemon_ = start_daemon(kill_at);
    bool cancelled = false;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (daemon_ != 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), limit) << "the jobs did not end";
      if (!cancelled && !text("waits.log").empty()) {
        store().cancel(waits, unix_time_s());
        cancelled = true;
      }
      if (urgent == 0 && !text("resumes.log").empty()) urgent = submit("echo begins >> urgent.log", 2, 5);
      int status = 0;
      if (::waitpid(daemon_, &status, WNOHANG) == daemon_) {
        if (WIFEXITED(status)) {
          daemon_ = 0;
          ASSERT_EQ(WEXITSTATUS(status), 0);
        } else {
          ++kills_;
          daemon_ = start_daemon(-1);
        }
      }
      pause_briefly();
    }
    expect_end(succeeds, QueueJobState::kDone, 0);
    expect_end(fails, QueueJobState::kFailed, 3);
    expect_end(waits, QueueJobState::kCancelled, 143);
    expect_end(resumes, QueueJobState::kDone, 0);
    expect_end(urgent, QueueJobState::kDone, 0);
    EXPECT_EQ(job(resumes).preemptions, 1);
    // No attempt that began was forgotten, and none began twice.
    for (const char* name : {"succeeds.log", "fails.log", "waits.log", "urgent.log"})
      EXPECT_EQ(text(name), "begins\n") << name;
    EXPECT_EQ(text("resumes.log"), "begins\nbegins\n");
  }

  void expect_end(int64_t id, QueueJobState state, int status) const {
    const JobRecord shown = job(id);
    EXPECT_EQ(shown.state, state) << "job " << id << ": " << name_of(shown.state);
    EXPECT_EQ(shown.status, status) << "job " << id;
    EXPECT_TRUE(shown.hosts.empty() && shown.local_slots.empty());
    int ends = 0;
    for (const JobTransition& step : store().log(id)) ends += is_final(job_state_named(step.to));
    EXPECT_EQ(ends, 1) << "job " << id;
  }

  std::set<std::string> points() const {
    std::set<std::string> seen;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path()))
      if (file.path().filename().string().starts_with("point-")) seen.insert(read_bytes(file.path()));
    return seen;
  }

  int count_points() const {
    int count = 0;
    while (std::filesystem::exists(dir_.path() / fmt::format("point-{}", count))) ++count;
    return count;
  }

  pid_t daemon_ = 0;
  int kills_ = 0;
};

constexpr int kPoints = 48;  // that a daemon passes; if a start is slow, it passes more

class DaemonKillAt : public DaemonKill, public testing::WithParamInterface<int> {};

TEST_F(DaemonKill, NeverKilledItPassesEveryTransition) {
  run(-1);
  EXPECT_EQ(kills_, 0);
  std::set<std::string> expected = {"forked", "signaled"};
  for (const char* edge : {"queued>starting", "starting>running", "running>done", "running>failed",
                           "running>stopping", "stopping>queued", "stopping>cancelled"}) {
    expected.insert(std::string(edge) + " before");
    expected.insert(std::string(edge) + " after");
  }
  EXPECT_EQ(points(), expected);
  EXPECT_GE(count_points(), kPoints) << "DaemonKillAt must not run without a kill";
}

TEST_P(DaemonKillAt, TheNextDaemonEndsEveryJobOnce) {
  if (!thorough() && GetParam() % 8 != 0) return;
  run(GetParam());
  // A point that this run did not pass kills nothing.
  EXPECT_EQ(kills_, std::filesystem::exists(dir_.path() / fmt::format("point-{}", GetParam())) ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(EveryPoint, DaemonKillAt, testing::Range(0, kPoints));

// Keepers whose ends this process sees, because orphans become its children.
class Keepers : public DaemonTest {
 protected:
  Keepers() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Keepers() override {
    end_keepers();
    wait_until([] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return errno == ECHILD;
    });
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }

  AttemptFiles attempt(int number) const {
    folder_.make_job_folder(1);
    return {folder_.job_folder(1), number};
  }

  void start(const std::string& script) const {
    KeeperOrder order;
    order.files = attempt(1);
    order.program = "/bin/sh";
    order.argv = {"sh", "-c", script};
    order.folder = dir_.path();
    order.environment = {"PATH=/usr/bin:/bin"};
    sigemptyset(&order.mask);
    start_keeper(order);
  }

  static void wait_for_keeper() {
    ASSERT_TRUE(wait_until([] { return ::waitpid(-1, nullptr, WNOHANG) > 0; }));
  }

  void wait_for_text(const std::string& name, const std::string& wanted) const {
    ASSERT_TRUE(wait_until([&] { return text(name) == wanted; })) << name << ": " << text(name);
  }

  // Sends a signal and waits until the keeper has taken it.
  static void signal_keeper(const ProcessName& keeper, int signal) {
    ASSERT_TRUE(send_signal(keeper, signal));
    ASSERT_TRUE(wait_until([&keeper] {
      return read_bytes(fmt::format("/proc/{}/status", keeper.pid)).find("ShdPnd:\t0000000000000000") !=
             std::string::npos;
    }));
  }

  // Starts a job and turns the daemon until the job has written `ready` and runs.
  int64_t run_job(Daemon& daemon, QueueStore& jobs, const std::string& script) {
    const int64_t id = submit(script);
    EXPECT_TRUE(wait_until([&] {
      daemon.turn();
      return text("ready.log") == "ready\n" && jobs.job(id)->state == QueueJobState::kRunning;
    }));
    return id;
  }

  // Turns the daemon until the job is in a state.
  static bool turn_until(Daemon& daemon, QueueStore& jobs, int64_t id, QueueJobState state) {
    return wait_until([&] {
      daemon.turn();
      return jobs.job(id)->state == state;
    });
  }
};

TEST_F(Keepers, RunNothingIfTheAttemptIsClaimed) {
  ASSERT_TRUE(void_claim(attempt(1)));
  start("echo begins >> ran.log");
  wait_for_keeper();
  EXPECT_EQ(text("ran.log"), "");
  EXPECT_FALSE(end_of(attempt(1)));
}

constexpr const char* kCountsSigterm =
    "trap 'echo term >> term.log' TERM; echo ready > ready.log; while [ ! -e go ]; do sleep 0.01; done; exit "
    "4";

TEST_F(Keepers, PassOnTheFirstSigtermAndOneSigint) {
  start(kCountsSigterm);
  wait_for_text("ready.log", "ready\n");
  const ProcessName keeper = claim_of(attempt(1)).value();
  signal_keeper(keeper, SIGTERM);
  wait_for_text("term.log", "term\n");
  signal_keeper(keeper, SIGTERM);
  signal_keeper(keeper, SIGINT);
  wait_for_text("term.log", "term\nterm\n");
  signal_keeper(keeper, SIGINT);
  write_bytes(dir_.file("go"), "");
  wait_for_keeper();
  EXPECT_EQ(end_of(attempt(1))->status, 4);
  EXPECT_TRUE(end_of(attempt(1))->told);
  EXPECT_NEAR(end_of(attempt(1))->ended_s, unix_time_s(), 60);
  EXPECT_EQ(text("term.log"), "term\nterm\n");
  EXPECT_FALSE(lives(keeper));
}

TEST_F(Keepers, WriteTheRecordWhenTheDiskHasSpaceAgain) {
  const std::string blocked = attempt(1).end();
  ::mkdir(blocked.c_str(), 0700);  // as a full disk, it makes writing fail
  start("exit 4");
  const std::string errors = folder_.job_folder(1) + "/err";
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(errors) &&
           read_bytes(errors).find("the keeper of the job failed") != std::string::npos;
  }));
  ::rmdir(blocked.c_str());
  wait_for_keeper();
  EXPECT_EQ(end_of(attempt(1))->status, 4);
  EXPECT_FALSE(end_of(attempt(1))->told);
}

TEST_F(Keepers, RecordWhyAProgramDoesNotStart) {
  KeeperOrder order;
  order.files = attempt(1);
  order.program = "/bin/sh";
  order.argv = {"sh"};
  order.folder = dir_.file("absent");
  sigemptyset(&order.mask);
  start_keeper(order);
  wait_for_keeper();
  EXPECT_EQ(end_of(attempt(1))->status, 127);
  EXPECT_THAT(end_of(attempt(1))->message, HasSubstr("cannot enter"));
}

// The daemon was killed between the transition and fork(). A keeper of that attempt may never begin later.
TEST_F(Keepers, AnAttemptThatIsGivenUpIsClaimed) {
  const int64_t id = submit("echo begins >> ran.log");
  JobRecord starting = job(id);
  starting.state = QueueJobState::kStarting;
  starting.attempt = 1;
  starting.started_s = unix_time_s();
  starting.hosts = {{kThisHost, 1}};
  store().move(job(id), starting, unix_time_s(), "attempt 1");
  const AttemptFiles first = attempt(1);
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, options());
  ASSERT_TRUE(wait_until([&] { return daemon.turn() == 0; }));
  wait_for_keeper();
  EXPECT_EQ(jobs.job(id)->state, QueueJobState::kDone);
  EXPECT_EQ(jobs.job(id)->attempt, 2);
  EXPECT_EQ(text("ran.log"), "begins\n");
  EXPECT_EQ(claim_of(first)->pid, 0);
}

// A fork() that succeeds and a keeper that never claims: after three times the job has failed.
TEST_F(Keepers, AJobThatNeverBeginsFailsInTheEnd) {
  const int64_t id = submit("true");
  folder_.make_job_folder(id);
  ::mkdir((folder_.job_folder(id) + "/out").c_str(), 0700);  // the keeper cannot open it
  ManualClock clock;
  DaemonOptions how = options();
  how.clock = &clock;
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, how);
  for (int turn = 0; turn < 20 && daemon.turn() > 0; ++turn) {
    ::waitpid(-1, nullptr, 0);  // the keeper, which has failed
    clock.advance(std::chrono::seconds(11));
  }
  EXPECT_EQ(jobs.job(id)->state, QueueJobState::kFailed);
  EXPECT_EQ(jobs.job(id)->attempt, 3);
  EXPECT_THAT(jobs.log(id).back().why, HasSubstr("did not begin, 3 times"));
}

// A job is in the state stopping for long, and no daemon has sent SIGTERM yet: the last one was killed
// before.
TEST_F(Keepers, AJobGetsSigtermBeforeAnythingElseNoMatterWhenItWasToldToStop) {
  ManualClock clock;
  DaemonOptions how = options();
  how.clock = &clock;
  QueueStore jobs(folder_.database(), false);
  Daemon first(folder_, jobs, how);
  const int64_t id = run_job(
      first, jobs,
      "trap 'echo term >> term.log; exit 143' TERM; echo ready > ready.log; while :; do sleep 0.01; done");
  const JobRecord running = job(id);
  JobRecord stopping = running;
  stopping.state = QueueJobState::kStopping;
  stopping.stop = StopReason::kCancelled;
  stopping.stopped_s = unix_time_s() - 1000;
  ASSERT_TRUE(jobs.move(running, stopping, unix_time_s(), "cancelled by the user"));
  Daemon next(folder_, jobs, how);
  EXPECT_TRUE(turn_until(next, jobs, id, QueueJobState::kCancelled));
  EXPECT_EQ(text("term.log"), "term\n");
  EXPECT_EQ(job(id).status, 143);
}

TEST_F(Keepers, AJobThatDoesNotEndGetsASecondSigtermAndThenSigkill) {
  ManualClock clock;
  clock.advance(std::chrono::hours(1));
  DaemonOptions how = options();
  how.clock = &clock;
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, how);
  const int64_t id = run_job(daemon, jobs, kCountsSigterm);
  const ProcessName keeper = claim_of({folder_.job_folder(id), 1}).value();
  store().cancel(id, unix_time_s());
  daemon.turn();
  wait_for_text("term.log", "term\n");
  clock.advance(std::chrono::seconds(119));
  daemon.turn();
  EXPECT_EQ(text("term.log"), "term\n");
  clock.advance(std::chrono::seconds(2));
  daemon.turn();
  wait_for_text("term.log", "term\nterm\n");
  clock.advance(std::chrono::seconds(12));
  daemon.turn();
  EXPECT_TRUE(lives(keeper));
  clock.advance(std::chrono::seconds(3));
  daemon.turn();
  wait_for_keeper();
  EXPECT_TRUE(turn_until(daemon, jobs, id, QueueJobState::kCancelled));
  EXPECT_EQ(job(id).status, 137);
}

// As when the host is shut down while no daemon runs.
TEST_F(Keepers, AJobThatIsInterruptedFromOutsideRunsAgain) {
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, options());
  const int64_t id = run_job(daemon, jobs,
                             "echo begins >> ran.log; [ -e again ] && exit 0; touch again; "
                             "trap 'exit 143' TERM; echo ready > ready.log; while :; do sleep 0.01; done");
  signal_keeper(claim_of({folder_.job_folder(id), 1}).value(), SIGTERM);
  EXPECT_TRUE(turn_until(daemon, jobs, id, QueueJobState::kDone));
  EXPECT_EQ(text("ran.log"), "begins\nbegins\n");
  EXPECT_EQ(job(id).preemptions, 0);
}

// SIGTERM ends a rank that does not handle it yet, and the launcher then reports a lost rank.
TEST_F(Keepers, AJobThatLosesARankWhileItMakesRoomRunsAgain) {
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, options());
  const int64_t id =
      run_job(daemon, jobs,
              "[ -e again ] && exit 0; touch again; trap 'exit 4' TERM; echo ready > ready.log; "
              "while :; do sleep 0.01; done");
  const int64_t urgent = submit("true", 2, 5);
  EXPECT_TRUE(turn_until(daemon, jobs, urgent, QueueJobState::kDone));
  EXPECT_TRUE(turn_until(daemon, jobs, id, QueueJobState::kDone));
  EXPECT_EQ(job(id).preemptions, 1);
}

TEST_F(Keepers, ATerminationThatNobodyAskedForIsAFailure) {
  const int64_t id = submit("exit 143");
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, options());
  EXPECT_TRUE(turn_until(daemon, jobs, id, QueueJobState::kFailed));
}

// The job has ended while no daemon ran. Its user is charged up to the end and not up to the next daemon.
TEST_F(Keepers, TheTimeWithoutADaemonIsNotCharged) {
  QueueStore jobs(folder_.database(), false);
  double now = unix_time_s();
  DaemonOptions how = options();
  how.now_s = [&now] { return now; };
  Daemon daemon(folder_, jobs, how);
  const int64_t id = run_job(daemon, jobs, kCountsSigterm);
  write_bytes(dir_.file("go"), "");
  wait_for_keeper();
  now += 1e5;
  daemon.turn();
  EXPECT_EQ(job(id).state, QueueJobState::kFailed);
  EXPECT_LT(job(id).ran_s, 1000);
  EXPECT_LT(jobs.usage().at("ada").amount, 1000);
}

TEST_F(Keepers, ADamagedClaimIsReportedOnceAndStopsNoOtherJob) {
  std::vector<std::string> problems;
  DaemonOptions how = options();
  how.on_problem = [&problems](const std::string& problem) { problems.push_back(problem); };
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, how);
  const int64_t id = run_job(daemon, jobs, kCountsSigterm);
  const AttemptFiles files{folder_.job_folder(id), 1};
  const std::string claim = read_bytes(files.claim());
  write_bytes(files.claim(), "{");
  const int64_t other = submit("true");
  EXPECT_TRUE(turn_until(daemon, jobs, other, QueueJobState::kDone));
  EXPECT_THAT(problems, testing::ElementsAre(HasSubstr("End all processes of the job")));
  write_bytes(files.claim(), claim);
  write_bytes(dir_.file("go"), "");
  EXPECT_TRUE(turn_until(daemon, jobs, id, QueueJobState::kFailed));
}

// Nobody records the end of a job whose keeper is killed, as when the host restarts.
TEST_F(Keepers, AJobWhoseProcessesDisappearRunsAgainAndFailsInTheEnd) {
  const int64_t id = submit("echo begins >> ran.log; exec sleep 600");
  QueueStore jobs(folder_.database(), false);
  Daemon daemon(folder_, jobs, options());
  std::string begins;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    begins += "begins\n";
    ASSERT_TRUE(wait_until([&] {
      daemon.turn();
      return text("ran.log") == begins && jobs.job(id)->state == QueueJobState::kRunning;
    }));
    const ProcessName keeper = claim_of({folder_.job_folder(id), attempt}).value();
    EXPECT_TRUE(send_signal(keeper, SIGKILL));
    ASSERT_TRUE(wait_until([&] { return !lives(keeper); }));
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {  // the keeper, and perhaps its launcher
    }
    daemon.turn();
  }
  EXPECT_EQ(jobs.job(id)->state, QueueJobState::kFailed);
  EXPECT_EQ(jobs.job(id)->status, 137);
  EXPECT_EQ(text("ran.log"), begins);
}

}  // namespace
}  // namespace starling
