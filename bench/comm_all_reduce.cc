// comm_bench [ranks] [--engine ENGINE] [--bytes N] [--json] measures an all-reduce of fp32 between ranks of
// this host.
//
// The sizes are 256 bytes to 64 MB, or only N bytes. The program prints the minimum, median and maximum over
// the repetitions of rank 0, in microseconds. Engines:
//
//   memory    Shared memory, for tensors in a window and in ordinary memory. This engine is the default.
//             From 64 KB on, comm_bench also measures how long the machine takes to move the same bytes
//             (transfer_limit.h).
//   tcp       Starling's TCP on loopback, as between hosts.
//   ucx       UCX on loopback, over the transports that UCX_TLS allows.
//   mpi       MPI. Start this engine with `mpiexec -n 2 comm_bench --engine mpi`.
//
// comm_bench forks the ranks, except for the engine mpi.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/fork_ranks.h"
#include "bench/transfer_limit.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/mpi/mpi_group.h"
#include "starling/comm/mpi/open.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/comm/network/ucx_connections.h"
#include "starling/launch/environment.h"
#include "starling/net/store/store_client.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kLargest = 64 << 20;

struct Options {
  int ranks = 2;
  std::string engine = "memory";
  std::vector<size_t> sizes = {256, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, kLargest};  // bytes
  bool json = false;
};

int repetitions_of(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / bytes, 16, 200));
}

// Returns the microseconds of each repetition, in ascending order. `count` is in elements.
// From 64 KB on, each rank overwrites its tensor before each all-reduce, as a training step does. The time of
// that write does not count. Below 64 KB, a repetition is the mean of 100 all-reduces.
std::vector<double> measure(Group& group, float* data, size_t count) {
  const int inner = count * 4 < 65536 ? 100 : 1;
  const int outer = repetitions_of(count * 4);
  std::vector<double> times;
  for (int o = -2; o < outer; ++o) {
    if (inner == 1) std::fill_n(data, count, static_cast<float>(o));
    barrier(group);
    const auto start = SteadyClock::now();
    for (int i = 0; i < inner; ++i) all_reduce(group, data, count, DataType::kFp32, ReduceOp::kAvg);
    const std::chrono::duration<double, std::micro> took = SteadyClock::now() - start;
    if (o >= 0) times.push_back(took.count() / inner);
    barrier(group);  // keeps ranks that share a core from running before this rank has read the clock
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

void tell_columns(const Group& group, const Options& options) {
  if (group.rank() == 0 && !options.json)
    fmt::print("{:>10} {:>13} {:>12} {:>12} {:>12}  (us, {} ranks)\n", "bytes", "memory", "min", "median",
               "max", group.size());
}

void time_shared_memory(Group& group, const Options& options) {
  const auto window = group.allocate_window(kLargest);
  std::vector<float> ordinary(kLargest / 4, 1.0f);
  auto* shared = reinterpret_cast<float*>(window->region(group.local_rank()));
  std::fill(shared, shared + kLargest / 4, 1.0f);
  for (const size_t bytes : options.sizes) {
    for (const bool in_window : {true, false}) {
      const auto times = measure(group, in_window ? shared : ordinary.data(), bytes / 4);
      if (group.rank() == 0) tell(bytes, in_window ? "window" : "ordinary", times, options.json);
    }
    if (bytes < 65536 || group.size() == 1) continue;
    const auto limits = measure_transfers(group, *window, bytes, repetitions_of(bytes));
    if (group.rank() != 0) continue;
    tell(bytes, "limit read", limits.read, options.json);
    if (bytes == kLargest) tell(bytes, "limit copy", limits.copy, options.json);
    tell(bytes, "limit staging", limits.staging, options.json);
  }
}

void time_engine(Group& group, const Options& options) {
  std::vector<float> ordinary(kLargest / 4, 1.0f);
  for (const size_t bytes : options.sizes) {
    const auto times = measure(group, ordinary.data(), bytes / 4);
    if (group.rank() == 0) tell(bytes, options.engine.c_str(), times, options.json);
  }
}

void run_rank(int rank, const Options& options, const std::string& address, const JobIdentity& identity) {
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = options.ranks;
  if (options.engine != "memory") setup.host_id = fmt::format("host-{}", rank);
  if (options.engine == "tcp") setup.connect = tcp_connector("127.0.0.1", identity);
  if (options.engine == "ucx") setup.connect = ucx_connector(load_ucx("lo"), "127.0.0.1", identity);
  const auto group = make_group(store, setup);
  tell_columns(*group, options);
  options.engine == "memory" ? time_shared_memory(*group, options) : time_engine(*group, options);
  barrier(*group);
}

int run_in_mpi(const Options& options) {
  try {
    const ProcessIdentity self = read_environment(environ).identity;
    GroupSetup setup;
    setup.rank = self.rank;
    setup.size = self.world_size;
    setup.world_ranks.resize(static_cast<size_t>(self.world_size));
    std::iota(setup.world_ranks.begin(), setup.world_ranks.end(), 0);
    const auto group = make_mpi_group(open_mpi(self.rank, self.world_size, name_of(self.origin)), setup);
    tell_columns(*group, options);
    time_engine(*group, options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

std::optional<Options> parse(std::span<char* const> words) {
  Options options;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string word = words[i];
    if (word == "--json")
      options.json = true;
    else if (word == "--engine" && i + 1 < words.size())
      options.engine = words[++i];
    else if (word == "--bytes" && i + 1 < words.size())
      options.sizes = {std::strtoul(words[++i], nullptr, 10) / 4 * 4};
    else
      options.ranks = std::atoi(word.c_str());
  }
  const std::string& engine = options.engine;
  const bool known = engine == "memory" || engine == "tcp" || engine == "ucx" || engine == "mpi";
  const size_t largest = options.sizes.back();
  if (!known || largest < 4 || largest > kLargest || options.ranks < (engine == "memory" ? 1 : 2) ||
      options.ranks > 64)
    return std::nullopt;
  return options;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const auto options = starling::parse({argv, static_cast<size_t>(argc)});
  if (!options) {
    fmt::print(stderr,
               "usage: comm_bench [ranks] [--engine memory|tcp|ucx|mpi] [--bytes N] [--json]\n"
               "ranks: 1 to 64 (tcp and ucx: 2 to 64); bytes: 4 to 67108864\n");
    return 2;
  }
  if (options->engine == "mpi") return starling::run_in_mpi(*options);
  return starling::fork_ranks(
      options->ranks, "comm-bench",
      [&](int rank, const std::string& address, const starling::JobIdentity& identity) {
        starling::run_rank(rank, *options, address, identity);
      });
}
