// form_group [--processes P,P,…] [--threads P,P,…] [--rounds N] [--timeout SECONDS]
//
// Measures how long P ranks take to form a group, and to form the next one after the loss of a rank.
//
// For the group, each process (default 16,64,256) is on a host of its own. All processes connect over TCP on
// the loopback of one network namespace. Threads (default 100,1000) connect in memory. The program prints the
// least, the median and the greatest time of N rounds (default 3) for every size. The first phase begins when
// all ranks are ready. A phase ends when the slowest rank is done, and the next phase except `loss` begins
// then:
//   group    make_group
//   barrier  the first barrier
//   loss     from the end of a rank until every other rank has an error (a killed process, or the key that a
//            launcher puts for a thread)
//   left     the end of the group that failed, on all ranks that are left
//   agreed   the agreement on the ranks that are left
//   again    make_group of the ranks that are left, and its first barrier
// The program also prints the store calls of the rank that makes most, for the first group (`calls`) and for
// the agreement and the second group (`again`). `conn.` is 2 (P − 1), the connections of a rank to all other
// ranks. The kernel's counters are those of all rounds: overflows and drops of listeners' queues, and SYN
// segments that were sent again.
//
// A process needs two descriptors per rank, a thread about 20. Raise `ulimit -n` accordingly.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/membership.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/memory/memory_store.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/counting_store.h"
#include "starling/testing/memory_connections.h"

namespace starling {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kPhases = 6;
constexpr const char* kPhaseNames[kPhases] = {"group", "barrier", "loss", "left", "agreed", "again"};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Board is the memory that the ranks of a round and the program share.
struct Board {
  std::atomic<int> ready{0}, joined{0}, lost{0}, done{0}, failed{0};
  std::atomic<double> start{0}, loss{0};  // 0: not yet
  std::array<std::array<double, kPhases>, kMostRanks> end{};
  std::array<int64_t, kMostRanks> calls{}, calls_after{};
  std::atomic<bool> serves{false};
  std::array<char, 100> address{};  // of the store, once it serves
  std::array<char, 400> error{};    // of the rank that failed first

  void fail(int rank, const char* what) {
    if (failed++ == 0)
      fmt::format_to_n(error.data(), static_cast<ptrdiff_t>(error.size() - 1), "rank {}: {}", rank, what);
  }
};

void sleep_until(const std::function<bool()>& done) {
  while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

struct Round {
  int ranks = 0;
  std::chrono::milliseconds timeout{120'000};
};

GroupSetup setup_of(const Round& round, int rank, const Connector& connect) {
  GroupSetup setup;
  setup.rank = rank;
  setup.size = round.ranks;
  setup.options.timeout = round.timeout;
  setup.options.shared_memory = false;
  setup.host_name = fmt::format("node-{}", rank);
  setup.connect = connect;
  return setup;
}

// What a rank does in a round. The last rank is the one that is lost.
void run_rank(Board& board, const Round& round, int rank, Store& plain, const Connector& connect,
              const std::function<void()>& be_lost) {
  CountingStore store(plain);
  auto& end = board.end[static_cast<size_t>(rank)];
  ++board.ready;
  sleep_until([&] { return board.start.load() > 0; });
  GroupSetup setup = setup_of(round, rank, connect);
  auto group = make_group(store, setup);
  end[0] = now();
  board.calls[static_cast<size_t>(rank)] = store.calls();
  barrier(*group);
  end[1] = now();
  ++board.joined;
  if (rank == round.ranks - 1) return be_lost();
  try {
    barrier(*group);
    throw Error(ErrorCode::kInternal, "a barrier without the lost rank ended");
  } catch (const CommError&) {
    end[2] = now();
  }
  group.reset();
  end[3] = now();
  ++board.lost;
  sleep_until([&] { return board.lost + board.failed >= round.ranks - 1; });
  const int64_t before = store.calls();
  const Membership left = agree_on_membership(store, rank, full_membership(round.ranks), {});
  end[4] = now();
  setup.generation = left.generation;
  setup.size = static_cast<int>(left.ranks.size());
  setup.world_ranks = left.ranks;
  const auto again = make_group(store, setup);
  barrier(*again);
  end[5] = now();
  board.calls_after[static_cast<size_t>(rank)] = store.calls() - before;
  ++board.done;
  sleep_until([&] { return board.done + board.failed >= round.ranks - 1; });
}

// The times of a round: of each phase, from the end of the phase before until the slowest rank is done.
std::array<double, kPhases> times_of(const Board& board, int ranks) {
  std::array<double, kPhases> last{};
  for (int r = 0; r < ranks; ++r)
    for (int phase = 0; phase < (r == ranks - 1 ? 2 : kPhases); ++phase)
      last[phase] = std::max(last[phase], board.end[static_cast<size_t>(r)][phase]);
  return {last[0] - board.start, last[1] - last[0], last[2] - board.loss,
          last[3] - last[2],     last[4] - last[3], last[5] - last[4]};
}

void start(Board& board, const Round& round) {
  sleep_until([&] { return board.ready + board.failed >= round.ranks; });
  board.start = now();
}

// The life of a process that is a rank. The store's server starts once all processes are there.
void live_as_process(Board& board, const Round& round, int rank, const JobIdentity& identity) {
  sleep_until([&] { return board.serves.load(); });
  try {
    StoreClient store(board.address.data(), identity);
    store.announce(rank);
    run_rank(board, round, rank, store, tcp_connector("127.0.0.1", identity), [] { pause(); });
  } catch (const std::exception& error) {
    board.fail(rank, error.what());
  }
}

void play_processes(Board& board, const Round& round) {
  const JobIdentity identity{make_job_key(), "form-group"};
  std::vector<pid_t> processes;
  for (int rank = 0; rank < round.ranks; ++rank) {
    const pid_t made = fork();
    if (made < 0) throw CommError("fork: " + std::string(std::strerror(errno)));
    if (made == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      live_as_process(board, round, rank, identity);
      _exit(0);
    }
    processes.push_back(made);
  }
  const StoreServer server({"127.0.0.1:0"}, identity);
  server.addresses().front().copy(board.address.data(), board.address.size() - 1);
  board.serves = true;
  start(board, round);
  sleep_until([&] { return board.joined == round.ranks || board.failed > 0; });
  board.loss = now();
  kill(processes.back(), SIGKILL);
  for (const pid_t process : processes) waitpid(process, nullptr, 0);
}

void play_threads(Board& board, const Round& round) {
  MemoryStore store;
  MemoryConnections first, second;  // of the two generations
  std::vector<std::thread> ranks;
  ranks.reserve(static_cast<std::size_t>(round.ranks));
  for (int rank = 0; rank < round.ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      const std::string again = group_keys(1);
      const Connector connect = [&](const ConnectionSetup& setup) {
        return (setup.group.starts_with(again) ? second : first).connect(setup);
      };
      const auto be_lost = [&] {
        sleep_until([&] { return board.joined == round.ranks || board.failed > 0; });
        board.loss = now();
        store.put(lost_key(rank), "it was ended by the measurement");
        store.put(kFirstLostKey, std::to_string(rank));
        sleep_until([&] { return board.done + board.failed >= round.ranks - 1; });
      };
      try {
        run_rank(board, round, rank, store, connect, be_lost);
      } catch (const std::exception& error) {
        board.fail(rank, error.what());
      }
    });
  }
  start(board, round);
  for (std::thread& rank : ranks) rank.join();
}

// Puts this process into a network namespace of its own, whose loopback is up, so that the kernel's counters
// count nothing else. Without the permission it stays where it is.
bool enter_namespace() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return up;
}

// Returns a counter of the kernel from a file like /proc/net/netstat: a line of names, then one of numbers.
int64_t counter(const std::string& path, const std::string& group, const std::string& name) {
  std::ifstream file(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    if (words.empty() || words[0] != group) continue;
    if (names.empty()) {
      names = words;
      continue;
    }
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return std::atoll(words[static_cast<size_t>(found - names.begin())].c_str());
  }
  return -1;
}

struct Counters {
  int64_t overflows = counter("/proc/self/net/netstat", "TcpExt:", "ListenOverflows");
  int64_t drops = counter("/proc/self/net/netstat", "TcpExt:", "ListenDrops");
  int64_t repeated = counter("/proc/self/net/netstat", "TcpExt:", "TCPSynRetrans");
};

using Play = void (*)(Board&, const Round&);

void measure(const char* kind, Play play, const Round& round, int rounds) {
  std::array<std::vector<double>, kPhases> times;
  int64_t calls = 0, calls_after = 0;
  const Counters before;
  for (int i = 0; i < rounds; ++i) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw CommError("mmap failed");
    Board& board = *new (memory) Board;
    play(board, round);
    if (board.failed > 0) throw CommError(board.error.data());
    const auto seen = times_of(board, round.ranks);
    for (int phase = 0; phase < kPhases; ++phase) times[phase].push_back(seen[phase]);
    calls = std::max(calls, *std::max_element(board.calls.begin(), board.calls.end()));
    calls_after =
        std::max(calls_after, *std::max_element(board.calls_after.begin(), board.calls_after.end()));
    munmap(memory, sizeof(Board));
  }
  const Counters after;
  fmt::print("{} {:>5}  ", kind, round.ranks);
  for (auto& of_phase : times) {
    std::sort(of_phase.begin(), of_phase.end());
    fmt::print(" {:>23}", fmt::format("{:.3f} / {:.3f} / {:.3f}", of_phase.front(),
                                      of_phase[of_phase.size() / 2], of_phase.back()));
  }
  fmt::print(" {:>6} {:>6} {:>6} {:>5} {:>5} {:>6}\n", calls, calls_after, 2 * (round.ranks - 1),
             after.overflows - before.overflows, after.drops - before.drops,
             after.repeated - before.repeated);
  std::fflush(stdout);
}

std::vector<int> sizes(const std::string& text) {
  std::vector<int> all;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const int ranks = std::atoi(word.c_str());
    if (ranks < 3 || ranks > kMostRanks) throw ConfigError("ranks", fmt::format("3 to {}", kMostRanks));
    all.push_back(ranks);
  }
  return all;
}

int run(int argc, char** argv) {
  std::vector<int> processes = {16, 64, 256}, threads = {100, 1000};
  int rounds = 3;
  Round round;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--processes") {
      processes = sizes(value);
    } else if (name == "--threads") {
      threads = sizes(value);
    } else if (name == "--rounds") {
      rounds = std::max(1, std::atoi(value.c_str()));
    } else if (name == "--timeout") {
      round.timeout = std::chrono::seconds(std::atoi(value.c_str()));
    } else {
      throw ConfigError(name, "unknown option; the head of bench/form_group.cc lists the options");
    }
  }
  fmt::print("network namespace of its own: {}\n", enter_namespace() ? "yes" : "no");
  fmt::print("s: min / median / max");
  for (const char* name : kPhaseNames) fmt::print(" {:>23}", name);
  fmt::print("  calls  again  conn. overf drops repeat.\n");
  for (const int ranks : processes) {
    round.ranks = ranks;
    measure("processes", play_processes, round, rounds);
  }
  for (const int ranks : threads) {
    round.ranks = ranks;
    measure("threads  ", play_threads, round, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::run(argc, argv);
  } catch (const starling::Error& error) {
    fmt::print(stderr, "form_group: {}\n", error.what());
    return 1;
  }
}
