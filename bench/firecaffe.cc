// firecaffe_bench measures the figure of FireCaffe (Iandola et al. 2016) on one machine.
//
// It all-reduces one gradient through a star (parameter server), a binomial tree, a ring and by halving and
// doubling. It prints the time of each algorithm for 2 to 8 hosts beside the algorithm's formula.
//
//   firecaffe_bench tbf [mbit] [bytes]       Hosts are network namespaces behind `tc tbf`. Needs root.
//   firecaffe_bench emulated [mbit] [bytes]  Hosts are processes behind Starling's emulated links.
//   firecaffe_bench both [mbit] [bytes]      Runs tbf, then emulated, and prints the ratio of their times.
//
// In the formulas, α is half the time of a ping and β the time per byte of one stream. Both are measured in
// the same run between two hosts. Times are medians of kRounds rounds after one round that does not count.
// The defaults are 1000 Mbit/s and 30 MB, which take about two minutes each.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/choice/cost.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/emulation/emulated_link.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr Algorithm kAlgorithms[] = {Algorithm::kStar, Algorithm::kBinomialTree, Algorithm::kRing,
                                     Algorithm::kHalvingDoubling};
constexpr int kHosts[] = {2, 3, 4, 6, 8};
constexpr int kRounds = 5;

struct Setting {
  bool emulated = false;
  int mbit = 1000;
  size_t bytes = 30'000'000;
};

// Result is what rank 0 reports to the parent process, in memory that both processes map.
struct Result {
  double alpha;
  double beta;
  double seconds[std::size(kAlgorithms)];
};

double since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Measures α and β between ranks 0 and 1. The other ranks only take part in the barriers.
void measure_stream(Group& group, std::vector<float>& data, Result& result) {
  const size_t bytes = data.size() * sizeof(float);
  barrier(group);
  char byte = 0;
  std::vector<double> pings;
  for (int i = 0; i < 20 && group.rank() < 2; ++i) {
    const auto start = SteadyClock::now();
    if (group.rank() == 0) send(group, &byte, 1, 1, 1);
    recv(group, &byte, 1, 1 - group.rank(), 1);
    if (group.rank() == 1) send(group, &byte, 1, 0, 1);
    pings.push_back(since(start) / 2);
  }
  if (group.rank() < 2) {
    const auto start = SteadyClock::now();
    if (group.rank() == 0) send(group, data.data(), bytes, 1, 2);
    if (group.rank() == 1) recv(group, data.data(), bytes, 0, 2);
    if (group.rank() == 1) send(group, &byte, 1, 0, 3);
    if (group.rank() == 0) recv(group, &byte, 1, 1, 3);
    std::sort(pings.begin(), pings.end());
    result.alpha = pings[pings.size() / 2];
    result.beta = (since(start) - 2 * result.alpha) / static_cast<double>(bytes);
  }
  barrier(group);
}

void run_rank(int rank, int size, const Setting& setting, const NetworkNamespaces* hosts,
              const JobIdentity& identity, Result* shown) {
  if (hosts != nullptr) hosts->enter(rank);
  const std::string address = hosts != nullptr ? hosts->address(0) + ":29513"
                                               : fmt::format("@starling-firecaffe-{}-{}", getppid(), size);
  std::unique_ptr<EmulatedLink> link;
  if (setting.emulated) link = std::make_unique<EmulatedLink>(LinkLimits{.bits_per_s = setting.mbit * 1e6});
  std::unique_ptr<StoreServer> server;
  if (rank == 0) server = std::make_unique<StoreServer>(std::vector<std::string>{address}, identity);
  StoreClient store(address, identity);
  Result result{};
  std::vector<float> data(setting.bytes / sizeof(float), 1.0f);
  for (size_t a = 0; a < std::size(kAlgorithms); ++a) {
    GroupSetup setup;
    setup.rank = rank;
    setup.size = size;
    setup.name = name_of(kAlgorithms[a]);
    setup.options.shared_memory = false;
    setup.options.algorithm = kAlgorithms[a];
    setup.host_id = fmt::format("host {}", rank);
    setup.connect = tcp_connector(hosts != nullptr ? hosts->address(rank) : "127.0.0.1", identity,
                                  link ? [&](UniqueFd socket) { return link->attach(std::move(socket)); }
                                       : std::function<UniqueFd(UniqueFd)>());
    const auto group = make_group(store, setup);
    if (a == 0) measure_stream(*group, data, result);
    std::vector<double> rounds;
    for (int round = 0; round <= kRounds; ++round) {
      std::fill(data.begin(), data.end(), 1.0f);
      barrier(*group);
      const auto start = SteadyClock::now();
      all_reduce(*group, data.data(), data.size(), DataType::kFp32, ReduceOp::kSum);
      double took = since(start);
      all_reduce(*group, &took, 1, DataType::kFp64, ReduceOp::kMax);
      if (data[data.size() / 2] != static_cast<float>(size))
        throw Error(ErrorCode::kInternal, "the sum is wrong");
      if (round > 0) rounds.push_back(took);
    }
    std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
    result.seconds[a] = rounds[kRounds / 2];
    barrier(*group);
  }
  if (rank == 0) {
    *shown = result;
    for (int r = 1; r < size; ++r) store.get(fmt::format("done/{}", r), Milliseconds(10'000));
  } else {
    store.put(fmt::format("done/{}", rank), "yes");
  }
}

Result measure(int size, const Setting& setting) {
  std::unique_ptr<NetworkNamespaces> hosts;
  if (!setting.emulated) {
    hosts = std::make_unique<NetworkNamespaces>(size);
    hosts->limit_rate(setting.mbit);
  }
  const JobIdentity identity{make_job_key(), "firecaffe"};
  void* memory = ::mmap(nullptr, sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shown = static_cast<Result*>(memory);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (const pid_t made = ::fork(); made != 0) {
      ranks.push_back(made);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(120);
    try {
      run_rank(rank, size, setting, hosts.get(), identity, shown);
      ::_exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      ::_exit(1);
    }
  }
  int failed = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    failed += ::waitpid(rank, &status, 0) < 0 || status != 0 ? 1 : 0;
  }
  const Result result = *shown;
  ::munmap(memory, sizeof(Result));
  if (failed > 0) throw Error(ErrorCode::kInternal, fmt::format("{} of {} hosts failed", failed, size));
  return result;
}

std::vector<Result> run(const Setting& setting) {
  fmt::print("{} bytes, {} Mbit/s, {}; ms, and the formula with this run's alpha and beta\n", setting.bytes,
             setting.mbit, setting.emulated ? "emulated links" : "tc tbf between namespaces");
  fmt::print("{:>5} {:>9} {:>9}", "hosts", "alpha us", "Mbit/s");
  for (const Algorithm a : kAlgorithms) fmt::print(" {:>17} {:>8} {:>6}", name_of(a), "formula", "ratio");
  fmt::print("\n");
  std::vector<Result> results;
  for (const int size : kHosts) {
    const Result& r = results.emplace_back(measure(size, setting));
    fmt::print("{:>5} {:>9.1f} {:>9.1f}", size, r.alpha * 1e6, 8e-6 / r.beta);
    for (size_t a = 0; a < std::size(kAlgorithms); ++a) {
      const double formula =
          cost_of(CollectiveKind::kAllReduce, kAlgorithms[a], size, static_cast<double>(setting.bytes))
              .seconds({r.alpha, 0, r.beta});
      fmt::print(" {:>17.1f} {:>8.1f} {:>6.3f}", r.seconds[a] * 1e3, formula * 1e3, r.seconds[a] / formula);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  return results;
}

int main_of(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  Setting setting;
  if (argc > 2) setting.mbit = std::atoi(argv[2]);
  if (argc > 3) setting.bytes = static_cast<size_t>(std::atoll(argv[3]));
  if ((how != "tbf" && how != "emulated" && how != "both") || setting.mbit < 1 || setting.bytes < 64) {
    fmt::print(stderr, "usage: firecaffe_bench tbf|emulated|both [mbit] [bytes]\n");
    return 2;
  }
  std::vector<Result> tbf, emulated;
  if (how != "emulated") {
    if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) {
      fmt::print(stderr, "{}\n", reason);
      return 1;
    }
    tbf = run(setting);
  }
  setting.emulated = true;
  if (how != "tbf") emulated = run(setting);
  if (how != "both") return 0;
  fmt::print("emulated / tbf:\n");
  for (size_t i = 0; i < tbf.size(); ++i) {
    fmt::print("{:>5} hosts, one stream {:.3f}", kHosts[i], emulated[i].beta / tbf[i].beta);
    for (size_t a = 0; a < std::size(kAlgorithms); ++a)
      fmt::print(", {} {:.3f}", name_of(kAlgorithms[a]), emulated[i].seconds[a] / tbf[i].seconds[a]);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::main_of(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "firecaffe_bench: {}\n", error.what());
    return 1;
  }
}
