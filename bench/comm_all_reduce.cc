// comm_bench [ranks] [--json]: forks ranks on this host and prints the time of an all-reduce of fp32, in a window and in ordinary
// memory, from 256 bytes to 64 MB, and from 64 KB on what the machine takes to move the same bytes (transfer_limit.h): the minimum, median
// and maximum over the repetitions of rank 0.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "bench/transfer_limit.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

int repetitions_of(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / bytes, 16, 200));
}

// Microseconds of each repetition. From 64 KB on each rank writes its tensor anew before each all-reduce (not timed), as a training step
// does; below, a repetition is the mean of a hundred.
std::vector<double> measure(Group& group, float* data, size_t count) {
  const int inner = count * 4 < 65536 ? 100 : 1;
  const int outer = repetitions_of(count * 4);
  std::vector<double> times;
  for (int o = -2; o < outer; ++o) {
    if (inner == 1) std::fill_n(data, count, static_cast<float>(o));
    group.barrier();
    const auto start = SteadyClock::now();
    for (int i = 0; i < inner; ++i) group.all_reduce(data, count, DataType::kFp32, ReduceOp::kAvg);
    const std::chrono::duration<double, std::micro> took = SteadyClock::now() - start;
    if (o >= 0) times.push_back(took.count() / inner);
    group.barrier();  // who shares a core with this rank waits until it has looked at the clock
  }
  std::sort(times.begin(), times.end());
  return times;
}

void tell(size_t bytes, const char* where, const std::vector<double>& times, bool json) {
  const double least = times.front(), median = times[times.size() / 2], most = times.back();
  if (json)
    fmt::print(
        "{{\"side\": \"{}\", \"bytes\": {}, \"min_us\": {:.3f}, \"median_us\": {:.3f}, \"max_us\": "
        "{:.3f}}}\n",
        where, bytes, least, median, most);
  else
    fmt::print("{:>10} {:>13} {:>12.2f} {:>12.2f} {:>12.2f}\n", bytes, where, least, median, most);
  std::fflush(stdout);
}

void run_rank(int rank, int size, bool json, const std::string& address, const JobIdentity& identity) {
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  const auto group = make_group(store, setup);
  constexpr size_t kLargest = size_t{64} << 20;
  const auto window = group->allocate_window(kLargest);
  std::vector<float> ordinary(kLargest / 4, 1.0f);
  auto* shared = reinterpret_cast<float*>(window->region(group->local_rank()));
  std::fill(shared, shared + kLargest / 4, 1.0f);
  if (rank == 0 && !json)
    fmt::print("{:>10} {:>13} {:>12} {:>12} {:>12}  (us, {} ranks)\n", "bytes", "memory", "min", "median",
               "max", size);
  for (size_t bytes = 256; bytes <= kLargest; bytes *= bytes < (1 << 20) ? 16 : 4) {
    for (const bool in_window : {true, false}) {
      const auto times = measure(*group, in_window ? shared : ordinary.data(), bytes / 4);
      if (rank == 0) tell(bytes, in_window ? "window" : "ordinary", times, json);
    }
    if (bytes < 65536 || size == 1) continue;
    const auto limits = measure_transfers(*group, *window, bytes, repetitions_of(bytes));
    if (rank != 0) continue;
    tell(bytes, "limit read", limits.read, json);
    if (bytes == kLargest) tell(bytes, "limit copy", limits.copy, json);
    tell(bytes, "limit staging", limits.staging, json);
  }
  group->barrier();
}

int run(int size, bool json) {
  const JobIdentity identity{make_job_key(), "comm-bench"};
  const std::string address = "@starling-comm-bench-" + std::to_string(getpid());
  for (int rank = 0; rank < size; ++rank) {
    if (fork() != 0) continue;
    try {
      run_rank(rank, size, json, address, identity);
      _exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      _exit(1);
    }
  }
  const StoreServer server({address}, identity);
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed += status != 0 ? 1 : 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string(argv[argc - 1]) == "--json";
  const int size = argc > (json ? 2 : 1) ? std::atoi(argv[1]) : 2;
  if (size < 1 || size > 64) {
    fmt::print(stderr, "usage: comm_bench [ranks] [--json], 1 to 64 ranks\n");
    return 2;
  }
  return starling::run(size, json);
}
