// background_work_bench measures whether a started all-reduce progresses while its rank computes.
//
//   background_work_bench [mbit] [bytes]     The defaults are 1000 Mbit/s and 64,000,000 bytes. Needs root.
//
// Two ranks run in two network namespaces behind `tc tbf`, each pinned to one core. A round measures three
// things in turn:
//   all-reduce   the blocking call alone
//   computation  a fixed loop alone, which takes as long as the all-reduce
//   both         start the all-reduce, compute the loop without a call into the group, then wait()
// The program prints the least, median and greatest value of kRounds rounds after one round that does not
// count. The last three lines are ratios of a round. The first two are the time of wait() after the
// computation, divided by the all-reduce alone, and the time of both together, divided by the longer one
// alone. Without progress in the background they would be 1 and 2. The second ratio exceeds 1 because the
// core that computes also carries out the all-reduce. The third ratio is that of both together to a bound:
// 1.1 times the longer one alone, and the processor time of the all-reduce alone. The exit status is 1 if on
// rank 0 the median of the first ratio exceeds 0.1, or that of the third ratio exceeds 1.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/fork_ranks.h"
#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/store/store_client.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kRounds = 11;

// Returns the processor time of this process in seconds, that of the kernel on its behalf included.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

void pin_to_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  if (::sched_setaffinity(0, sizeof(cores), &cores) != 0)
    throw Error(ErrorCode::kInternal, fmt::format("cannot pin the rank to core {}", core));
}

// Passes `times` times over an array that fits the second-level cache. Returns a value that depends on every
// pass.
[[gnu::noinline]] float compute(std::vector<float>& values, int64_t times) {
  for (int64_t t = 0; t < times; ++t)
    for (float& value : values) value = value * 0.999f + 0.5f;
  return values[values.size() / 2];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string spread(std::vector<double> values, double scale) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:9.3f} {:9.3f} {:9.3f}", scale * values.front(), scale * values[values.size() / 2],
                     scale * values.back());
}

// Figures are the values of all counted rounds.
struct Figures {
  std::vector<double> reduced, reduced_cpu, computed, waited, both, wait_ratio, both_ratio, bound_ratio;
};

Figures measure(Group& group, size_t bytes) {
  std::vector<float> data(bytes / sizeof(float), 1.0f), values(64 * 1024, 1.0f);
  const auto reduce = [&] { all_reduce(group, data.data(), data.size(), DataType::kFp32, ReduceOp::kMax); };
  // Each rank measures its own loop, so that both compute as long as they communicate.
  reduce();
  auto start = SteadyClock::now();
  reduce();
  const double alone = since(start);
  // The fastest of several probes counts, because other programs may slow some of them down.
  constexpr int64_t kProbe = 1'000;
  float kept = 0;
  double probe = 1e9;
  for (int i = 0; i < 20; ++i) {
    start = SteadyClock::now();
    kept += compute(values, kProbe);
    probe = std::min(probe, since(start));
  }
  const auto times = static_cast<int64_t>(alone / probe * kProbe);

  Figures figures;
  for (int round = 0; round <= kRounds; ++round) {
    barrier(group);
    const double cpu_before = cpu_seconds();
    start = SteadyClock::now();
    reduce();
    const double a = since(start), a_cpu = cpu_seconds() - cpu_before;
    barrier(group);
    start = SteadyClock::now();
    kept += compute(values, times);
    const double b = since(start);
    barrier(group);
    start = SteadyClock::now();
    const WorkPtr work = group.all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
    kept += compute(values, times);
    const auto after = SteadyClock::now();
    work->wait();
    const double c = since(start), w = since(after);
    if (round == 0) continue;
    figures.reduced.push_back(a);
    figures.reduced_cpu.push_back(a_cpu);
    figures.computed.push_back(b);
    figures.both.push_back(c);
    figures.waited.push_back(w);
    figures.wait_ratio.push_back(w / a);
    figures.both_ratio.push_back(c / std::max(a, b));
    figures.bound_ratio.push_back(c / (1.1 * std::max(a, b) + a_cpu));
  }
  barrier(group);
  if (kept == 0.25f) fmt::print(" \n");  // keeps the compiler from removing the loop
  return figures;
}

void run_rank(int rank, size_t bytes, const NetworkNamespaces& hosts, const std::string& address,
              const JobIdentity& identity) {
  ::alarm(300);  // ends the rank if it hangs
  // The store's address cannot be reached from the namespace, so the client connects before.
  StoreClient store(address, identity);
  hosts.enter(rank);
  pin_to_core(rank);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = kRanks;
  setup.options.shared_memory = false;
  setup.host_id = fmt::format("host {}", rank);
  setup.connect = tcp_connector(hosts.address(rank), identity);
  const auto group = make_group(store, setup);

  const Figures f = measure(*group, bytes);
  if (rank != 0) return;
  fmt::print("rank 0{:>19} {:>9} {:>9}\n", "least", "median", "greatest");
  fmt::print(
      "all-reduce, ms  {}\n  its CPU time  {}\ncomputation, ms {}\nboth, ms        {}\nwait(), ms      "
      "{}\n",
      spread(f.reduced, 1e3), spread(f.reduced_cpu, 1e3), spread(f.computed, 1e3), spread(f.both, 1e3),
      spread(f.waited, 1e3));
  fmt::print("wait / all-reduce{}\nboth / longer   {}\nboth / bound    {}\n", spread(f.wait_ratio, 1),
             spread(f.both_ratio, 1), spread(f.bound_ratio, 1));
  if (median(f.wait_ratio) > 0.1)
    throw Error(ErrorCode::kInternal, "wait() takes more than a tenth of the all-reduce");
  if (median(f.bound_ratio) > 1)
    throw Error(ErrorCode::kInternal, "both together take longer than the bound");
}

int run(int mbit, size_t bytes) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) {
    fmt::print(stderr, "{}\n", reason);
    return 2;
  }
  NetworkNamespaces hosts(kRanks);
  hosts.limit_rate(mbit);
  fmt::print("{} bytes, {} Mbit/s, {} ranks with one core each\n", bytes, mbit, kRanks);
  std::fflush(stdout);
  return fork_ranks(kRanks, "background-work",
                    [&](int rank, const std::string& address, const JobIdentity& identity) {
                      run_rank(rank, bytes, hosts, address, identity);
                    });
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const int mbit = argc > 1 ? std::atoi(argv[1]) : 1000;
  const size_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64'000'000;
  return starling::run(mbit, bytes);
}
