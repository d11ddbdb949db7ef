// process_group_bench [rounds] measures what c10d::ProcessGroup adds to an all-reduce of Starling's Group.
//
// Two ranks of this host reduce ordinary fp32 tensors synchronously, through c10d::ProcessGroup as libtorch
// calls it and directly through the Group below. A round makes 100 calls of each. The program prints the
// least, median and greatest of the rounds, in microseconds per call.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/fork_ranks.h"
#include "starling/c10d/process_group.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/store/store_client.h"

namespace starling {
namespace {

constexpr int kRanks = 2;
constexpr int kCalls = 100;

double microseconds_of(Group& group, const std::function<void()>& call) {
  barrier(group);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

std::string spread(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:8.2f} / {:8.2f} / {:8.2f}", values.front(), values[values.size() / 2], values.back());
}

void run_rank(int rank, int rounds, const std::string& address, const JobIdentity& identity) {
  at::set_num_threads(1);
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = rank;
  setup.size = kRanks;
  const std::shared_ptr<Group> group = make_group(store, setup);
  const auto process_group = make_process_group(group);
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  for (const int64_t bytes : {256, 1024, 4096, 16384, 65536}) {
    std::vector<at::Tensor> tensors = {at::zeros({bytes / 4})};
    auto* data = static_cast<float*>(tensors[0].data_ptr());
    const auto count = static_cast<size_t>(bytes / 4);
    std::vector<double> through, below;
    for (int round = -1; round < rounds; ++round) {
      const double a = microseconds_of(*group, [&] { process_group->allreduce(tensors, options)->wait(); });
      const double b =
          microseconds_of(*group, [&] { all_reduce(*group, data, count, DataType::kFp32, ReduceOp::kSum); });
      if (round < 0) continue;
      through.push_back(a);
      below.push_back(b);
    }
    if (rank == 0)
      fmt::print("{:>6} bytes   ProcessGroup {}   Group {}\n", bytes, spread(through), spread(below));
    std::fflush(stdout);
  }
  barrier(*group);
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
  if (argc > 2 || rounds < 1) {
    fmt::print(stderr, "usage: process_group_bench [rounds]\n");
    return 2;
  }
  return starling::fork_ranks(
      starling::kRanks, "process-group-bench",
      [rounds](int rank, const std::string& address, const starling::JobIdentity& identity) {
        starling::run_rank(rank, rounds, address, identity);
      });
}
