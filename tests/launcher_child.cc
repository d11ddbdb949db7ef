// launcher_child RANKS RUN_DIR MODE [ARGUMENT…] is a program for launcher_test.
//
// Without the variable RANK it launches itself as RANKS ranks. As a rank it does what MODE says. LAUNCH_HOSTS
// (such as a:2,b) names hosts, and LAUNCH_COMMAND names the command that reaches them. The program does not
// use torch, so that it runs under every sanitizer.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/environment.h"
#include "starling/launch/fault.h"
#include "starling/launch/host_agent.h"
#include "starling/launch/launch_rendezvous.h"
#include "starling/launch/launcher.h"
#include "starling/launch/step_board.h"
#include "starling/net/security/job_key.h"
#include "starling/net/store/store_client.h"
#include "starling/spec/hosts.h"

namespace starling {
namespace {

sigset_t blocked_term() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// Waits for SIGTERM and then ends with status 0, like a rank that saves a checkpoint.
int wait_for_term(const Environment& env) {
  const sigset_t set = blocked_term();
  std::fprintf(stderr, "ready\n");
  int signal = 0;
  sigwait(&set, &signal);
  std::fprintf(stderr, "saved by %d\n", env.identity.rank);
  return 0;
}

// Takes SIGUSR1 only once the file "go" is there, and then ends with status 0. Rank 0 has a handler, and the
// other ranks wait for the signal.
int wait_for_usr1(const Environment& env) {
  std::fprintf(stderr, "ready\n");
  while (access((env.run_dir + "/go").c_str(), F_OK) != 0) usleep(1000);  // the test's timeout ends the wait
  static volatile sig_atomic_t taken = 0;
  if (env.identity.rank == 0) {
    ::signal(SIGUSR1, [](int) { taken = 1; });
    while (taken == 0) usleep(1000);
  } else {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    int number = 0;
    sigwait(&set, &number);
  }
  std::fprintf(stderr, "saved by %d\n", env.identity.rank);
  return 0;
}

// Does not end by itself. Ignores SIGTERM.
int stay(const Environment& env) {
  blocked_term();
  StepBoard::open(env.board_fd, env.identity.world_size).set(env.identity.rank, 0);
  std::fprintf(stderr, "ready\n");
  for (;;) pause();
}

// Does not end by itself, like stay(). Every rank except rank 0 prints all the time.
int chatter(const Environment& env) {
  if (env.identity.rank == 0) return stay(env);
  blocked_term();
  std::fprintf(stderr, "ready\n");
  for (;; usleep(100))
    std::fprintf(stderr, "rank %d has a lot to say, and nobody may be there who wants to hear it\n",
                 env.identity.rank);
}

std::string file_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Leaves a process behind in a session of its own, which does not end by itself. The folder is in its command
// line.
int leave_daemon(const Environment& env, bool killed) {
  if (fork() != 0) {
    if (killed) raise(SIGKILL);
    return 0;
  }
  setsid();
  const std::string file = env.run_dir + "/log/rank-0.log";
  execlp("tail", "tail", "-f", file.c_str(), nullptr);
  _exit(1);
}

// Prints where the key's bytes are visible, and whether the descriptor contains the key.
int look_for_key(const Environment& env) {
  const JobKey key = read_job_key_fd(env.key_fd);
  const std::string bytes(reinterpret_cast<const char*>(key.bytes().data()), key.bytes().size());
  std::string hex;
  for (const unsigned char c : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", c);
    hex += two;
  }
  for (const char* path : {"/proc/self/cmdline", "/proc/self/environ"}) {
    const std::string text = file_text(path);
    if (text.empty() || text.find(bytes) != std::string::npos || text.find(hex) != std::string::npos)
      return 4;
  }
  std::printf("key ok\n");
  return 0;
}

// Every rank puts a word into the store and reads the word of the next rank. This shows that the store serves
// every rank. On several hosts the connections to the store are authenticated.
int meet(const Environment& env) {
  const bool apart = !env.job_store.empty();
  StoreClient store(apart ? env.job_store : env.store,
                    JobIdentity{read_job_key_fd(env.key_fd), env.job_id,
                                apart ? DataSecurity::kAuth : DataSecurity::kNone});
  const int size = env.identity.world_size, next = (env.identity.rank + 1) % size;
  store.put("word/" + std::to_string(env.identity.rank), "hello");
  const std::string word = store.get("word/" + std::to_string(next), std::chrono::seconds(30));
  std::printf("rank %d says %s\n", next, word.c_str());
  std::printf("rank %d of %d, local %d of %d, master %s:%d\n", env.identity.rank, size,
              env.identity.local_rank, env.identity.local_world_size, env.master_host.c_str(),
              env.master_port);
  return 0;
}

int say_place(const Environment& env) {
  std::printf("rank %d of %d, local %d of %d\n", env.identity.rank, env.identity.world_size,
              env.identity.local_rank, env.identity.local_world_size);
  return 0;
}

int rank_main(const Environment& env, const std::vector<std::string>& args) {
  const std::string& mode = args[0];
  const int rank = env.identity.rank;
  const int chosen = args.size() > 1 ? std::atoi(args[1].c_str()) : -1;
  if (mode == "ok") return say_place(env);
  if (mode == "key") return look_for_key(env);
  if (mode == "meet") return meet(env);
  if (mode == "daemon") return leave_daemon(env, rank == chosen);
  if (mode == "wait") return wait_for_term(env);
  if (mode == "usr1") return wait_for_usr1(env);
  if (mode == "stay") return stay(env);
  if (mode == "chatter") return chatter(env);
  if (mode == "say") {
    if (rank > 0) std::fprintf(stderr, "the disk is slow\n");
    return 0;
  }
  if (mode == "kill") {
    if (rank != chosen) return stay(env);
    StepBoard board = StepBoard::open(env.board_fd, env.identity.world_size);
    for (int r = 0; r < env.identity.world_size; ++r) {
      while (r != rank && board.get(r) < 0)
        usleep(1000);  // until every other rank is in stay(); the test's timeout ends the wait
    }
    board.set(rank, 812);
    std::fprintf(stderr, "about to die\n");
    raise(SIGKILL);
  }
  if (mode == "stuck") {  // the last rank gives up the chosen rank, which is stopped
    StepBoard board = StepBoard::open(env.board_fd, env.identity.world_size);
    board.set(rank, 7);
    const int first = rank - env.identity.local_rank;
    for (int r = first; r < first + env.identity.local_world_size; ++r)
      while (board.get(r) < 0)
        usleep(1000);  // until all of this host have begun; the test's timeout ends the wait
    const std::string place = env.run_dir + "/stopped";
    if (rank == chosen) {
      std::ofstream(place + ".new") << getpid() << std::flush;
      std::rename((place + ".new").c_str(), place.c_str());
      raise(SIGSTOP);
    }
    // The launcher may not know yet that the chosen rank runs, so the report is repeated until that rank has
    // ended. The test's timeout ends the wait.
    pid_t pid = 0;
    while (rank == env.identity.world_size - 1 && (pid == 0 || kill(pid, 0) == 0)) {
      std::ifstream(place) >> pid;
      if (pid > 0) report_stuck(env, chosen, "it did not answer within 3 ms");
      usleep(20'000);
    }
    std::printf("rank %d continues\n", rank);
    return 0;
  }
  if (mode == "blame") {  // every rank reports the chosen rank, which itself reports another cause
    if (rank != chosen) throw CommError("peer rank " + args[1] + " died", chosen);
    throw DataError("no such file: x.idx");
  }
  if (mode == "same") throw ConfigError("--lr", "-1 is negative");
  return 99;
}

HostsOptions named_hosts() {
  HostsOptions options;
  const char* const hosts = std::getenv("LAUNCH_HOSTS");
  if (hosts == nullptr) return options;
  for (const HostSlots& host : parse_hosts(hosts)) options.hosts.push_back({host.name, host.slots});
  options.command = std::getenv("LAUNCH_COMMAND");
  options.security = DataSecurity::kAuth;
  if (const char* program = std::getenv("LAUNCH_PROGRAM")) options.program = program;
  if (const char* silence = std::getenv("LAUNCH_SILENCE_MS"))
    options.silence = std::chrono::milliseconds(std::atoi(silence));
  if (const char* reach = std::getenv("LAUNCH_REACH_MS"))
    options.reach = std::chrono::milliseconds(std::atoi(reach));
  return options;
}

int launcher_main(const std::vector<std::string>& args, char** argv, char** environ) {
  LaunchOptions options;
  options.hosts = named_hosts();
  options.quiet = !options.hosts.hosts.empty();  // omits the warning about too few cores
  options.ranks = std::atoi(args[0].c_str());
  options.threads = 1;
  options.run_dir = args[1];
  options.argv.assign(argv, argv + 1 + args.size());
  options.environment = environ;
  options.rendezvous = start_local_rendezvous;
  options.json = args[2] == "blame";
  if (args[2] == "stuck") options.expendable = options.ranks;
  // The window is long enough that every rank has reported before the launcher prints, even on a loaded
  // machine.
  options.fold_window = std::chrono::minutes(5);
  if (args[2] == "same" || args[2] == "blame")
    options.settle = options.term_after = options.kill_after = options.fold_window;
  if (std::getenv("KILL_AFTER_MS")) {
    options.term_after = std::chrono::milliseconds(std::atoi(std::getenv("KILL_AFTER_MS")));
    options.kill_after = options.term_after;
    options.repeat_gap = std::chrono::milliseconds(0);
  }
  return launch(options, SystemClock());
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv, char** environ) {
  using namespace starling;
  if (is_host_agent(argc, argv)) return run_host_agent(environ);
  if (argc < 4) return 98;
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const Environment env = read_environment(environ);
    if (env.identity.origin == ProcessOrigin::kAlone) return launcher_main(args, argv, environ);
    try {
      return rank_main(env, {args.begin() + 2, args.end()});
    } catch (const Error& e) {
      if (!report_fatal(env, e)) std::fprintf(stderr, "%s\n", e.what());
      return e.code() == ErrorCode::kConfig ? 2 : e.code() == ErrorCode::kData ? 3 : 5;
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return e.code() == ErrorCode::kInterrupted ? 130 : e.code() == ErrorCode::kComm ? 4 : 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
