#include "starling/testing/forked_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/collective_test_values.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/comm/ucx_mesh.h"

namespace starling {
namespace {

constexpr int kReducedBeforeReady = 3;  // all-reduces

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
  group.all_reduce(data.data(), count, DataType::kFp32, ReduceOp::kSum);
  expect(data == want, "all-reduce", count);
  group.all_reduce(shared, count, DataType::kFp32, ReduceOp::kSum);
  expect(std::equal(want.begin(), want.end(), shared), "all-reduce in a window", count);
  group.barrier();  // others may still look into this rank's window
}

// `wide`: what this rank has for all, `count` elements each.
void check_all_to_all(Group& group, const Values& wide, size_t count) {
  const size_t p = static_cast<size_t>(group.size()), rank = static_cast<size_t>(group.rank());
  const std::vector<size_t> splits(p, count);
  Values crossed(wide.size());
  group.all_to_all(wide.data(), splits, crossed.data(), splits, DataType::kFp32);
  Values want;
  for (size_t r = 0; r < p; ++r) {
    const Values piece = test_tensor(DataType::kFp32, count, static_cast<int>(r), 2, count * rank);
    want.insert(want.end(), piece.begin(), piece.end());
  }
  expect(crossed == want, "all-to-all", count);
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
  setup.connect = ucx ? ucx_mesh(load_ucx("lo"), "127.0.0.1", identity) : tcp_mesh("127.0.0.1", identity);
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
  group.reduce_scatter(wide.data(), part.data(), count, DataType::kFp32, ReduceOp::kMax);
  const size_t first = count * static_cast<size_t>(rank);
  expect(part == reduced_tensor(DataType::kFp32, count, p, ReduceOp::kMax, 2, first), "reduce-scatter",
         count);

  Values data = test_tensor(DataType::kFp32, count, rank, 1), all(wide.size()), want;
  group.all_gather(data.data(), all.data(), count, DataType::kFp32);
  for (int r = 0; r < p; ++r) {
    const Values piece = test_tensor(DataType::kFp32, count, r, 1);
    want.insert(want.end(), piece.begin(), piece.end());
  }
  expect(all == want, "all-gather", count);

  check_all_to_all(group, wide, count);
  group.broadcast(data.data(), count, DataType::kFp32, p - 1);
  expect(data == test_tensor(DataType::kFp32, count, p - 1, 1), "broadcast", count);
  group.barrier();
}

void check_mail(Group& group) {
  const int p = group.size(), next = (group.rank() + 1) % p, before = (group.rank() + p - 1) % p;
  // UCX's messages change their form behind 8192 bytes.
  for (const size_t bytes : {size_t{0}, size_t{8192}, size_t{8193}, size_t{200'000}, size_t{3'000'001}}) {
    const Values letter = test_tensor(DataType::kUint8, bytes, group.rank(), 3);
    Values got(bytes);
    group.send(letter.data(), bytes, next, 4);
    group.recv(got.data(), bytes, before, 4);
    expect(got == test_tensor(DataType::kUint8, bytes, before, 3), "a message", bytes);
  }
}

void run_until_fault(Group& group, Store& store) {
  std::vector<float> data(200'000, 1.0f);
  std::string fault;
  try {
    for (int i = 0;; ++i) {
      if (i == kReducedBeforeReady) store.put(rank_key("ready", group.rank()), "yes");
      group.all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
    }
  } catch (const TimeoutError& error) {
    fault = fmt::format("timeout {} {}", error.peer(), error.what());
  } catch (const CommError& error) {
    fault = fmt::format("comm {} {}", error.peer(), error.what());
  }
  store.put(rank_key("fault", group.rank()), fault);
}

}  // namespace starling
