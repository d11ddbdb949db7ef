#include "starling/testing/forked_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/comm/network/ucx_connections.h"

namespace starling {
namespace {

constexpr int kReducedBeforeReady = 3;  // how many all-reduces come before "ready"

using Values = std::vector<std::byte>;

void expect(bool right, const char* what, size_t count) {
  if (!right) throw Error(ErrorCode::kInternal, fmt::format("{} of {} is wrong", what, count));
}

void check_all_reduces(Group& group, size_t count) {
  Values data = test_tensor(DataType::kFp32, count, group.rank(), 1);
  const auto window = group.allocate_window(std::max<size_t>(1, data.size()));
  std::byte* shared = window->region(group.local_rank());
  std::copy(data.begin(), data.end(), shared);
  const Values want = reduced_tensor(DataType::kFp32, count, group.size(), ReduceOp::kSum, 1);
  all_reduce(group, data.data(), count, DataType::kFp32, ReduceOp::kSum);
  expect(equal_bytes(data, want), "all-reduce", count);
  all_reduce(group, shared, count, DataType::kFp32, ReduceOp::kSum);
  expect(equal_bytes({shared, shared + want.size()}, want), "all-reduce in a window", count);
  barrier(group);  // other ranks may still read this rank's window
}

// Checks an all-to-all. `wide` is what this rank has for all ranks, `count` elements each.
void check_all_to_all(Group& group, const Values& wide, size_t count) {
  const size_t p = static_cast<size_t>(group.size()), rank = static_cast<size_t>(group.rank());
  const std::vector<size_t> splits(p, count);
  Values crossed(wide.size());
  all_to_all(group, wide.data(), splits, crossed.data(), splits, DataType::kFp32);
  Values want;
  for (size_t r = 0; r < p; ++r) {
    const Values piece = test_tensor(DataType::kFp32, count, static_cast<int>(r), 2, count * rank);
    want.insert(want.end(), piece.begin(), piece.end());
  }
  expect(equal_bytes(crossed, want), "all-to-all", count);
}

}  // namespace

const char* name_of(Transport transport) {
  switch (transport) {
    case Transport::kSharedMemory:
      return "shared-memory";
    case Transport::kTcp:
      return "tcp";
    case Transport::kMixed:
      return "mixed";
    case Transport::kUcx:
      return "ucx";
  }
  return "unknown";
}

std::string unavailable(Transport transport) {
  if (transport != Transport::kUcx) return "";
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto plugin = program.parent_path().parent_path() / "lib/starling/libstarling_ucx.so";
  return std::filesystem::exists(plugin) ? "" : "UCX is not installed here: its engine was not built";
}

GroupSetup ForkedJob::setup_of(int rank) const {
  const bool ucx = transport == Transport::kUcx;
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  setup.options.timeout = timeout;
  setup.options.shared_memory = !ucx && transport != Transport::kTcp;
  setup.options.algorithm = algorithm;
  setup.host_name = "node-a";
  if (transport == Transport::kMixed) {
    const bool first = rank < size / 2;
    setup.host_name = first ? "node-a" : "node-b";
    setup.host_id = fmt::format("{} {}", identity.job_id, setup.host_name);
  }
  setup.connect =
      ucx ? ucx_connector(load_ucx("lo"), "127.0.0.1", identity) : tcp_connector("127.0.0.1", identity);
  return setup;
}

std::string rank_key(const char* what, int rank) {
  return fmt::format("{}/{}", what, rank);
}

void check_collectives(Group& group, size_t count) {
  const int p = group.size(), rank = group.rank();
  check_all_reduces(group, count);

  const Values wide = test_tensor(DataType::kFp32, count * static_cast<size_t>(p), rank, 2);
  Values part(count * 4);
  reduce_scatter(group, wide.data(), part.data(), count, DataType::kFp32, ReduceOp::kMax);
  const size_t first = count * static_cast<size_t>(rank);
  expect(equal_bytes(part, reduced_tensor(DataType::kFp32, count, p, ReduceOp::kMax, 2, first)),
         "reduce-scatter", count);

  Values data = test_tensor(DataType::kFp32, count, rank, 1), all(wide.size()), want;
  all_gather(group, data.data(), all.data(), count, DataType::kFp32);
  for (int r = 0; r < p; ++r) {
    const Values piece = test_tensor(DataType::kFp32, count, r, 1);
    want.insert(want.end(), piece.begin(), piece.end());
  }
  expect(equal_bytes(all, want), "all-gather", count);

  check_all_to_all(group, wide, count);
  broadcast(group, data.data(), count, DataType::kFp32, p - 1);
  expect(equal_bytes(data, test_tensor(DataType::kFp32, count, p - 1, 1)), "broadcast", count);
  barrier(group);
}

void check_messages(Group& group) {
  const int p = group.size(), next = (group.rank() + 1) % p, before = (group.rank() + p - 1) % p;
  // Above 8192 bytes, a message over UCX has another form.
  for (const size_t bytes : {size_t{0}, size_t{8192}, size_t{8193}, size_t{200'000}, size_t{3'000'001}}) {
    const Values message = test_tensor(DataType::kUint8, bytes, group.rank(), 3);
    Values got(bytes);
    send(group, message.data(), bytes, next, 4);
    recv(group, got.data(), bytes, before, 4);
    expect(equal_bytes(got, test_tensor(DataType::kUint8, bytes, before, 3)), "a message", bytes);
  }
}

void check_started(Group& group) {
  const int p = group.size(), next = (group.rank() + 1) % p, before = (group.rank() + p - 1) % p;
  constexpr size_t kCount = 300'001;
  Values sum = test_tensor(DataType::kFp32, kCount, group.rank(), 1),
         all(kCount * 4 * static_cast<size_t>(p));
  const Values own = test_tensor(DataType::kFp32, kCount, group.rank(), 2);
  Values first(own.size()), second(own.size());
  // The receives of the second message and of the first one progress at the same time, beside the
  // collectives.
  const WorkPtr works[] = {
      group.recv(second.data(), second.size(), before, 6),
      group.recv(first.data(), first.size(), before, 5),
      group.all_reduce(sum.data(), kCount, DataType::kFp32, ReduceOp::kSum),
      group.all_gather(own.data(), all.data(), kCount, DataType::kFp32),
      group.send(own.data(), own.size(), next, 5),
      group.send(own.data(), own.size(), next, 6),
  };
  barrier(group);  // it follows the two started collectives
  expect(works[2]->is_completed() && works[3]->is_completed(), "the order of collectives", kCount);
  for (const WorkPtr& work : works) work->wait();
  expect(equal_bytes(sum, reduced_tensor(DataType::kFp32, kCount, p, ReduceOp::kSum, 1)),
         "a started all-reduce", kCount);
  const Values theirs = test_tensor(DataType::kFp32, kCount, before, 2);
  expect(equal_bytes(first, theirs) && equal_bytes(second, theirs), "a started message", kCount);
  const auto part = all.begin() + static_cast<int64_t>(theirs.size()) * before;
  expect(equal_bytes({part, part + static_cast<int64_t>(theirs.size())}, theirs), "a started all-gather",
         kCount);
}

void run_until_fault(Group& group, Store& store) {
  std::vector<float> data(200'000, 1.0f);
  std::string fault;
  try {
    for (int i = 0;; ++i) {
      if (i == kReducedBeforeReady) store.put(rank_key("ready", group.rank()), "yes");
      all_reduce(group, data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
    }
  } catch (const TimeoutError& error) {
    fault = fmt::format("timeout {} {}", error.peer(), error.what());
  } catch (const CommError& error) {
    fault = fmt::format("comm {} {}", error.peer(), error.what());
  }
  store.put(rank_key("fault", group.rank()), fault);
}

}  // namespace starling
