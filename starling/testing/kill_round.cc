#include "starling/testing/kill_round.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kNamedWithin{5'000};
constexpr milliseconds kJoinedWithin{30'000};
constexpr milliseconds kGoneWithin{30'000};
constexpr size_t kMostElements = 256 * 1024;
constexpr int kReadyAfter = 3;  // how many collectives come before the kill
constexpr Algorithm kAlgorithms[] = {
    Algorithm::kAuto,         Algorithm::kRing,       Algorithm::kDirect, Algorithm::kHalvingDoubling,
    Algorithm::kBinomialTree, Algorithm::kDoubleTree, Algorithm::kBruck,  Algorithm::kStar};

// RoundSetup is what all ranks of a round know.
struct RoundSetup {
  KillRound round;
  JobIdentity identity;
  std::string store;  // the address of the store

  GroupSetup setup_of(int rank) const {
    ForkedJob job;
    job.transport = round.transport;
    job.identity = identity;
    job.size = round.ranks;
    job.algorithm = kAlgorithms[round.seed % std::size(kAlgorithms)];
    return job.setup_of(rank);
  }
};

// Caller calls the round's collective again and again. All ranks draw the same random sizes.
class Caller {
 public:
  Caller(const KillRound& round, Group& group)
      : kind_(round.kind),
        group_(group),
        draw_(round.seed),
        in_(kMostElements, 1.0f),
        out_(kMostElements, 0.0f) {}

  void call() {
    const size_t p = static_cast<size_t>(group_.size());
    const size_t count = size_t{1} << std::uniform_int_distribution<int>(0, 18)(draw_);
    const size_t share = std::max<size_t>(1, count / p);
    switch (kind_) {
      case CollectiveKind::kBarrier:
        return barrier(group_);
      case CollectiveKind::kBroadcast:
        return broadcast(group_, in_.data(), count, DataType::kFp32,
                         std::uniform_int_distribution<int>(0, group_.size() - 1)(draw_));
      case CollectiveKind::kAllReduce:
        return all_reduce(group_, in_.data(), count, DataType::kFp32, ReduceOp::kMax);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(group_, in_.data(), out_.data(), share, DataType::kFp32, ReduceOp::kSum);
      case CollectiveKind::kAllGather:
        return all_gather(group_, in_.data(), out_.data(), share, DataType::kFp32);
      case CollectiveKind::kAllToAll: {
        const std::vector<size_t> splits(p, share);
        return all_to_all(group_, in_.data(), splits, out_.data(), splits, DataType::kFp32);
      }
      default: {
        const int next = (group_.rank() + 1) % group_.size();
        const int last = (group_.rank() + group_.size() - 1) % group_.size();
        send(group_, in_.data(), 4 * count, next, 1);
        return recv(group_, out_.data(), 4 * count, last, 1);
      }
    }
  }

 private:
  const CollectiveKind kind_;
  Group& group_;
  std::mt19937_64 draw_;
  std::vector<float> in_, out_;
};

// Runs a rank: calls the collective until a call fails, then reports which rank the error names.
void run_kill_rank(const RoundSetup& setup, int rank) {
  StoreClient store(setup.store, setup.identity);
  std::string fault;
  try {
    const auto group = make_group(store, setup.setup_of(rank));
    Caller caller(setup.round, *group);
    for (int i = 0;; ++i) {
      if (i == kReadyAfter) store.put(rank_key("ready", rank), "yes");
      caller.call();
    }
  } catch (const CommError& error) {
    fault = fmt::format("{}\n{}", error.peer(), error.what());
  } catch (const std::exception& error) {
    fault = fmt::format("-2\n{}", error.what());
  }
  store.put(rank_key("fault", rank), fault);
}

// Processes holds the processes of a round. It kills those that are left when it is destroyed.
class Processes {
 public:
  explicit Processes(const RoundSetup& setup) {
    for (int r = 0; r < setup.round.ranks; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
          run_kill_rank(setup, r);
        } catch (const std::exception&) {
          ::_exit(1);  // the store is gone, so nobody is left to tell
        }
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (size_t r = 0; r < pids_.size(); ++r) (void)ended(static_cast<int>(r), milliseconds(0));
  }
  Processes(const Processes&) = delete;

  const std::vector<pid_t>& pids() const { return pids_; }
  void kill(int rank) const { ::kill(pids_[static_cast<size_t>(rank)], SIGKILL); }

  // Waits for a rank to end. If it does not end in time, kills it and returns false.
  bool ended(int rank, milliseconds time) {
    pid_t& pid = pids_[static_cast<size_t>(rank)];
    if (pid <= 0) return true;
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    pollfd polled{process.get(), POLLIN, 0};
    const bool in_time = ::poll(&polled, 1, static_cast<int>(time.count())) > 0;
    if (!in_time) ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
    return in_time;
  }

 private:
  std::vector<pid_t> pids_;
};

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    names.insert(entry.path().filename().string());
  return names;
}

// Returns how many lines of /proc/net/unix name the store.
size_t unix_sockets_named(const std::string& name) {
  std::ifstream lines("/proc/net/unix");
  size_t found = 0;
  for (std::string line; std::getline(lines, line);) found += line.find(name) != std::string::npos ? 1 : 0;
  return found;
}

// Returns the inodes of a process's sockets. Another program may get the number of a port, but not the inode.
std::set<std::string> sockets_of(pid_t pid) {
  constexpr std::string_view kSocket = "socket:[";
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const std::string to = std::filesystem::read_symlink(entry.path(), error).string();
    if (to.starts_with(kSocket)) inodes.insert(to.substr(kSocket.size(), to.size() - kSocket.size() - 1));
  }
  return inodes;
}

// Returns how many of these sockets listen at a port. Connections are not counted, because no connection of a
// rank outlives its process, which is checked.
size_t listening_sockets(const std::set<std::string>& inodes) {
  std::ifstream lines("/proc/net/tcp");
  size_t found = 0;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, repeated, user, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> repeated >> user >> timeout >> inode;
    found += state == "0A" && inodes.contains(inode) ? 1 : 0;
  }
  return found;
}

// Leftovers compares what a round might leave behind, before and after the round.
class Leftovers {
 public:
  Leftovers() : descriptors_(names_in("/proc/self/fd").size()), shm_(names_in("/dev/shm")) {}

  // `sockets` are the inodes of the ranks' sockets.
  void look(const RoundSetup& setup, const std::set<std::string>& sockets,
            std::vector<std::string>& problems) const {
    if (::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) problems.push_back("a process is left");
    const size_t now = names_in("/proc/self/fd").size();
    if (now != descriptors_) problems.push_back(fmt::format("{} descriptors, {} before", now, descriptors_));
    for (const std::string& name : names_in("/dev/shm"))
      if (!shm_.contains(name) && name.find("starling") != std::string::npos)
        problems.push_back("/dev/shm/" + name + " is left");
    if (const size_t left = unix_sockets_named(setup.store); left > 0)
      problems.push_back(fmt::format("{} Unix sockets are left", left));
    if (const size_t left = listening_sockets(sockets); left > 0)
      problems.push_back(fmt::format("{} TCP sockets still listen", left));
  }

 private:
  size_t descriptors_;
  std::set<std::string> shm_;
};

void ask_survivors(Store& store, const KillRound& round, KillOutcome& outcome) {
  const auto start = SteadyClock::now();
  for (int r = 0; r < round.ranks; ++r) {
    if (r == outcome.victim) continue;
    const auto spent = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - start);
    try {
      const std::string fault =
          store.get(rank_key("fault", r), std::max(milliseconds(1), kNamedWithin - spent));
      const int named = std::atoi(fault.c_str());
      if (named != outcome.victim)
        outcome.problems.push_back(
            fmt::format("rank {} named rank {}: {}", r, named, fault.substr(fault.find('\n') + 1)));
    } catch (const TimeoutError&) {
      outcome.problems.push_back(fmt::format("rank {} named nobody within {} ms", r, kNamedWithin.count()));
    }
    outcome.slowest_s = std::chrono::duration<double>(SteadyClock::now() - start).count();
  }
}

// Plays the round. Returns the inodes of the ranks' sockets.
std::set<std::string> kill_one(const RoundSetup& setup, KillOutcome& outcome) {
  const KillRound& round = setup.round;
  std::mt19937_64 draw(~round.seed);
  Processes processes(setup);
  const StoreServer server({setup.store}, setup.identity);
  StoreClient store(setup.store, setup.identity);
  for (int r = 0; r < round.ranks; ++r) store.get(rank_key("ready", r), kJoinedWithin);
  std::set<std::string> sockets;
  for (const pid_t pid : processes.pids()) sockets.merge(sockets_of(pid));
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, 40'000)(draw)));
  outcome.victim = std::uniform_int_distribution<int>(0, round.ranks - 1)(draw);
  processes.kill(outcome.victim);
  ask_survivors(store, round, outcome);
  for (int r = 0; r < round.ranks; ++r)
    if (!processes.ended(r, kGoneWithin)) outcome.problems.push_back(fmt::format("rank {} did not end", r));
  return sockets;
}

}  // namespace

KillOutcome play_kill_round(const KillRound& round) {
  KillOutcome outcome;
  RoundSetup setup{round,
                   {make_job_key(), "kill-round", round.security},
                   fmt::format("@starling-kill-{}-{}", ::getpid(), round.seed)};
  const Leftovers before;
  std::set<std::string> sockets;
  try {
    sockets = kill_one(setup, outcome);
  } catch (const Error& error) {
    outcome.problems.push_back(error.what());
  }
  before.look(setup, sockets, outcome.problems);
  return outcome;
}

std::string problems_of(const KillRound& round) {
  const KillOutcome outcome = play_kill_round(round);
  std::string lines;
  for (const std::string& problem : outcome.problems) lines += problem + "\n";
  if (lines.empty() && outcome.victim >= 0) return "";
  return fmt::format("{}, {}, {} ranks, security {}, seed {}, victim {}:\n{}", name_of(round.kind),
                     name_of(round.transport), round.ranks, security_name(round.security), round.seed,
                     outcome.victim, lines);
}

}  // namespace starling
