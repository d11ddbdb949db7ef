// FolderLock with the checkpoints that its holder writes into a run folder.
#include "starling/job/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/address.h"
#include "starling/testing/error_of.h"
#include "starling/testing/file_size_limit.h"
#include "starling/testing/temp_dir.h"
#include "starling/train/checkpoint_folder.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

FolderLockOptions quick() {
  FolderLockOptions options;
  options.beat = milliseconds(10);
  options.silence = milliseconds(300);
  options.grace = milliseconds(50);
  return options;
}

// A process of its own that holds the lock of a folder and does as it is told.
class HolderProcess {
 public:
  explicit HolderProcess(const fs::path& run, const std::string& incarnation = "other") {
    int to_child[2], from_child[2];
    if (::pipe(to_child) != 0 || ::pipe(from_child) != 0) throw std::runtime_error("pipe");
    commands_.reset(to_child[1]);
    answers_.reset(from_child[0]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      commands_.reset();
      ::_exit(obey(run, incarnation, UniqueFd(to_child[0]), UniqueFd(from_child[1])));
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    if (answer() != 'L') throw std::runtime_error("the child did not get the lock");
  }
  ~HolderProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void wait_until_stopped() const { ::waitpid(pid_, nullptr, WUNTRACED); }
  void kill_and_leave_zombie() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  // Begins to write a checkpoint and stops itself before it gives the folder its name.
  void write_and_stop() const { order('W'); }
  // Lets the process release the lock and end.
  void end() const {
    order('E');
    ::waitpid(pid_, nullptr, 0);
  }
  char answer() const {
    char c = 0;
    return ::read(answers_.get(), &c, 1) == 1 ? c : 0;
  }

 private:
  void order(char c) const { EXPECT_EQ(::write(commands_.get(), &c, 1), 1); }

  static int obey(const fs::path& run, const std::string& incarnation, const UniqueFd& in,
                  const UniqueFd& out) {
    auto lock = std::make_unique<FolderLock>(run, incarnation, quick());
    const auto tell = [&](char c) { return ::write(out.get(), &c, 1) == 1; };
    if (!tell('L')) return 1;
    for (char c = 0; ::read(in.get(), &c, 1) == 1 && c == 'W';) {
      try {
        CheckpointFolderWriter writer(run, 10, {"r", incarnation, lock->epoch(), {}},
                                      [&](std::string_view at) {
                                        if (at == "rename") ::raise(SIGSTOP);
                                      });
        writer.add_text("state.json", "written by the former holder");
        writer.commit();
        tell('C');
      } catch (const Error&) {
        tell('F');
      }
      tell(lock->held() ? 'H' : 'R');
    }
    lock.reset();
    return 0;
  }

  UniqueFd commands_, answers_;
  pid_t pid_ = -1;
};

std::string refusal(const fs::path& run) {
  return error_of([&] { FolderLock lock(run, "mine", quick()); });
}

TEST(FolderLock, AReleasedLockIsTakenAtOnceWithAHigherEpoch) {
  const TempDir run;
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    const FolderLock lock(run.path(), "mine", quick());
    EXPECT_EQ(lock.epoch(), epoch);
    EXPECT_TRUE(lock.held());
    EXPECT_NO_THROW(lock.require());
  }
}

TEST(FolderLock, ALivingHolderIsNamed) {
  const TempDir run;
  const HolderProcess holder(run.path());
  for (const bool stopped : {false, true}) {  // a stopped process is not dead
    if (stopped) holder.signal(SIGSTOP);
    EXPECT_THAT(refusal(run.path()),
                AllOf(HasSubstr(run.path().string()), HasSubstr("process " + std::to_string(holder.pid())),
                      HasSubstr(host_name()), HasSubstr("--run-dir"), HasSubstr("delete")));
  }
  holder.signal(SIGCONT);
  holder.end();
  EXPECT_EQ(refusal(run.path()), "");
}

TEST(FolderLock, TheLockOfADeadProcessIsTaken) {
  const TempDir run;
  const HolderProcess holder(run.path());
  holder.kill_and_leave_zombie();  // as if its parent had not waited for it yet
  const FolderLock lock(run.path(), "mine", quick());
  EXPECT_EQ(lock.epoch(), 2);
}

TEST(FolderLock, AProcessThatIsEndingGetsTime) {
  const TempDir run;
  const HolderProcess holder(run.path());
  FolderLockOptions patient = quick();
  patient.grace = milliseconds(600'000);
  std::thread ends([&] { holder.signal(SIGKILL); });
  const FolderLock lock(run.path(), "mine", patient);
  EXPECT_EQ(lock.epoch(), 2);
  ends.join();
}

// Another process with the number of a dead holder is not the holder.
TEST(FolderLock, ANumberThatIsUsedAgainIsNotTheHolder) {
  const TempDir run;
  // The kernel counts the start of a process in ticks of 10 ms, so the holder must start in another tick.
  std::this_thread::sleep_for(milliseconds(20));
  const HolderProcess holder(run.path());
  const fs::path file = run.path() / "lock" / "epoch-000001";
  std::string text = read_bytes(file);
  const std::string was = "\"pid\": " + std::to_string(holder.pid());
  text.replace(text.find(was), was.size(), "\"pid\": " + std::to_string(::getpid()));
  write_bytes(file, text);
  EXPECT_EQ(refusal(run.path()), "");
}

// Makes the lock look like that of a process of another host: its number means nothing here.
void move_to_another_host(const fs::path& run) {
  const fs::path file = run / "lock" / "epoch-000001";
  std::string text = read_bytes(file);
  const size_t at = text.find("\"pids\": \"") + 9;
  text[at] = text[at] == '0' ? '1' : '0';
  const fs::path beside = run / "beside";
  write_bytes(beside, text);
  fs::rename(beside, file);
}

TEST(FolderLock, AHolderOnAnotherHostThatGivesSignsOfLifeIsNamed) {
  const TempDir run;
  const HolderProcess holder(run.path());
  move_to_another_host(run.path());
  FolderLockOptions options = quick();
  options.silence = milliseconds(600'000);  // never reached
  std::vector<std::string> said;
  options.say = [&](const std::string& text) { said.push_back(text); };
  EXPECT_THAT(error_of([&] { FolderLock lock(run.path(), "mine", options); }),
              HasSubstr("process " + std::to_string(holder.pid())));
  EXPECT_EQ(said.size(), 1u);
}

TEST(FolderLock, ASilentHolderOnAnotherHostIsReplacedAndStopsWhenItWakesUp) {
  const TempDir run;
  const HolderProcess holder(run.path());
  move_to_another_host(run.path());
  holder.write_and_stop();
  holder.wait_until_stopped();
  const FolderLock lock(run.path(), "mine", quick());
  EXPECT_EQ(lock.epoch(), 2);
  remove_leftovers(run.path());
  holder.signal(SIGCONT);
  EXPECT_EQ(holder.answer(), 'F') << "it gave its folder the checkpoint's name";
  EXPECT_EQ(holder.answer(), 'R');
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
  EXPECT_TRUE(lock.held());
  holder.end();
  EXPECT_TRUE(lock.held()) << "the former holder released the lock of the new one";
}

// The leader of a run has changed: the processes have one incarnation.
TEST(FolderLock, AFormerLeaderOfTheRunIsReplacedAtOnce) {
  const TempDir run;
  const HolderProcess holder(run.path(), "mine");
  holder.write_and_stop();
  holder.wait_until_stopped();
  FolderLockOptions options = quick();
  options.grace = options.silence = milliseconds(600'000);
  const FolderLock lock(run.path(), "mine", options);
  EXPECT_EQ(lock.epoch(), 2);
  remove_leftovers(run.path());
  holder.signal(SIGCONT);
  EXPECT_EQ(holder.answer(), 'F');
  EXPECT_EQ(holder.answer(), 'R');
}

TEST(FolderLock, TheFormerHolderIsTold) {
  const TempDir run;
  std::promise<void> told;
  FolderLockOptions options = quick();
  options.replaced = [&] { told.set_value(); };
  const FolderLock former(run.path(), "mine", options);
  const FolderLock next(run.path(), "mine", quick());
  told.get_future().wait();
  EXPECT_FALSE(former.held());
  EXPECT_THAT(error_of([&] { former.require(); }),
              AllOf(HasSubstr("process " + std::to_string(::getpid())), HasSubstr("epoch 2")));
}

// A folder in the file's place lets read(2) fail, as a disk with an error does. The thread that gives signs
// of life reads the file, too.
TEST(FolderLock, AFileThatCannotBeReadDoesNotEndTheHolder) {
  const TempDir run;
  std::atomic<bool> told{false};
  FolderLockOptions options = quick();
  options.beat = milliseconds(1);
  options.replaced = [&] { told = true; };
  const FolderLock lock(run.path(), "mine", options);
  const fs::path file = run.path() / "lock" / "epoch-000001";
  fs::remove(file);
  fs::create_directory(file);
  const fs::file_time_type old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(file, old);
  while (fs::last_write_time(file) == old) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(lock.held());
  EXPECT_NO_THROW(lock.require());
  EXPECT_FALSE(told);
}

// A start whose lock cannot be written, as on a full disk, leaves no file behind.
TEST(FolderLock, AFailedStartLeavesNothing) {
  const TempDir run;
  {
    const FileSizeLimit full(10);
    EXPECT_THAT(refusal(run.path()), AllOf(HasSubstr("cannot write the lock of the folder"),
                                           HasSubstr("No space left on device")));
  }
  EXPECT_TRUE(fs::is_empty(run.path() / "lock"));
}

TEST(FolderLock, OfManyOneGetsIt) {
  const TempDir run;
  {
    const FolderLock before(run.path(), "before", quick());
  }
  std::atomic<int> refused{0};
  std::vector<std::unique_ptr<FolderLock>> locks(8);
  std::vector<std::thread> threads;
  threads.reserve(locks.size());
  for (size_t i = 0; i < locks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        locks[i] = std::make_unique<FolderLock>(run.path(), std::to_string(i), quick());
      } catch (const ConfigError&) {
        ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 7);
}

// Deleting the folder does not end a run. If another run then takes the lock, the run must stop.
TEST(FolderLock, ADeletedFolderIsNobodys) {
  const TempDir run;
  const FolderLock lock(run.path(), "mine", quick());
  fs::remove_all(run.path() / "lock");
  EXPECT_TRUE(lock.held());
  const FolderLock other(run.path(), "other", quick());
  EXPECT_FALSE(lock.held());
  EXPECT_TRUE(other.held());
}

TEST(FolderLock, AHigherEpochOfADeletedFolderIsNobodysEither) {
  const TempDir run;
  {
    const FolderLock first(run.path(), "first", quick());
  }
  {
    const FolderLock lock(run.path(), "second", quick());
    EXPECT_GT(lock.epoch(), 1);
    fs::remove_all(run.path() / "lock");
    const FolderLock other(run.path(), "other", quick());
    EXPECT_LT(other.epoch(), lock.epoch());
    EXPECT_FALSE(lock.held());
    EXPECT_TRUE(other.held());
  }
  // The end of the former holder has left nothing in the folder.
  const FolderLock next(run.path(), "next", quick());
  EXPECT_EQ(next.epoch(), 2);
}

}  // namespace
}  // namespace starling
