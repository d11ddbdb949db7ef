// A rank of mpi_test. It compares every collective of a Group over the MPI engine with the naive reference,
// and it tests the messages after faults. The exit status is 1 at the first difference. The program itself
// does not call MPI.
//
//   mpi_ranks              Under mpiexec: collectives, messages, groups of some ranks.
//   mpi_ranks bytes        Under mpiexec: the counted bytes of collectives and codecs.
//   mpi_ranks FAULT        Under mpiexec. FAULT is unequal, splits, many, late or dead. Each rank writes the
//                          group's message to the file said-RANK and ends with status 3. Flight recorders are
//                          in the folder `recorder`.
//   mpi_ranks other-build  Without mpiexec: loads the plug-in as a program of another build.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/shared_object.h"
#include "starling/codec/codec_test_bytes.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/mpi/mpi_group.h"
#include "starling/comm/mpi/open.h"
#include "starling/comm/recorder/flight_recorder.h"
#include "starling/comm/recorder/flight_recorder_report.h"
#include "starling/launch/environment.h"
#include "starling/testing/counted_bytes.h"
#include "starling/testing/forked_job.h"

namespace starling {
namespace {

constexpr size_t kCounts[] = {0, 1, 7, 1000, 20'011};

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

// Returns whether two results are equal. The values are small integers, so that every order of summation
// gives the same result. An average may differ in its last bit.
bool equal(DataType type, ReduceOp op, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a == b) return true;
  if (op != ReduceOp::kAvg || a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size() / size_of(type); ++i) {
    float x = 0, y = 0;
    double u = 0, v = 0;
    if (type == DataType::kFp32) {
      std::memcpy(&x, a.data() + 4 * i, 4);
      std::memcpy(&y, b.data() + 4 * i, 4);
      if (std::abs(x - y) > 1e-6f * std::abs(x)) return false;
    } else if (type == DataType::kFp64) {
      std::memcpy(&u, a.data() + 8 * i, 8);
      std::memcpy(&v, b.data() + 8 * i, 8);
      if (std::abs(u - v) > 1e-15 * std::abs(u)) return false;
    } else {
      return false;
    }
  }
  return true;
}

int reductions(Group& group) {
  int cases = 0;
  const int p = group.size();
  for (const DataType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (is_bitwise(op) && is_floating(type)) continue;
      for (const size_t count : kCounts) {
        const std::string what =
            std::string(name_of(op)) + " of " + name_of(type) + " " + std::to_string(count);
        std::vector<std::byte> data = test_tensor(type, count, group.rank(), cases);
        all_reduce(group, data.data(), count, type, op);
        expect(equal(type, op, reduced_tensor(type, count, p, op, cases), data), "all-reduce, " + what);
        const size_t all = count * static_cast<size_t>(p), mine = count * static_cast<size_t>(group.rank());
        const std::vector<std::byte> in = test_tensor(type, all, group.rank(), cases);
        std::vector<std::byte> out(count * size_of(type));
        reduce_scatter(group, in.data(), out.data(), count, type, op);
        expect(equal(type, op, reduced_tensor(type, count, p, op, cases, mine), out),
               "reduce-scatter, " + what);
        ++cases;
      }
    }
  }
  return cases;
}

int moves(Group& group) {
  int cases = 0;
  const size_t p = static_cast<size_t>(group.size()), r = static_cast<size_t>(group.rank());
  for (const DataType type : kTypes) {
    for (const size_t count : kCounts) {
      const std::string what = std::string(name_of(type)) + " " + std::to_string(count);
      const int root = cases % group.size();
      std::vector<std::byte> data = test_tensor(type, count, group.rank(), cases);
      const std::vector<std::byte> own = data;
      broadcast(group, data.data(), count, type, root);
      expect(data == test_tensor(type, count, root, cases), "broadcast, " + what);
      std::vector<std::byte> all(p * count * size_of(type)), expected;
      all_gather(group, own.data(), all.data(), count, type);
      for (size_t from = 0; from < p; ++from) {
        const auto part = test_tensor(type, count, static_cast<int>(from), cases);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      expect(all == expected, "all-gather, " + what);
      // Rank a sends count + a + b elements to rank b.
      std::vector<size_t> in_counts, out_counts;
      std::vector<std::byte> in;
      expected.clear();
      for (size_t other = 0; other < p; ++other) {
        in_counts.push_back(count + r + other);
        out_counts.push_back(count + r + other);
        const auto to = test_tensor(type, in_counts.back(), group.rank(), static_cast<int>(other));
        in.insert(in.end(), to.begin(), to.end());
        const auto from = test_tensor(type, out_counts.back(), static_cast<int>(other), group.rank());
        expected.insert(expected.end(), from.begin(), from.end());
      }
      std::vector<std::byte> out(expected.size());
      all_to_all(group, in.data(), in_counts, out.data(), out_counts, type);
      expect(out == expected, "all-to-all, " + what);
      barrier(group);
      ++cases;
    }
  }
  return cases;
}

// Sends messages around a ring, in two threads beside the collectives. Every rank sends before it receives.
void ring_of_messages(Group& group) {
  const int p = group.size(), next = (group.rank() + 1) % p, before = (group.rank() + p - 1) % p;
  std::vector<int64_t> sums(2);
  std::vector<std::thread> threads;
  threads.reserve(sums.size());
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (size_t bytes : {size_t{0}, size_t{5}, size_t{300'000}}) {
        const std::vector<std::byte> own =
            test_tensor(DataType::kUint8, bytes, group.rank(), static_cast<int>(t));
        std::vector<std::byte> got(bytes);
        std::thread sender([&] { send(group, own.data(), bytes, next, 0x50000000u + t); });
        if (t == 0) recv(group, got.data(), bytes, before, 0x50000000u + t);
        while (t == 1 && !group.try_recv(got.data(), bytes, before, 0x50000000u + t))
          std::this_thread::yield();
        sender.join();
        if (got == test_tensor(DataType::kUint8, bytes, before, static_cast<int>(t))) ++sums[t];
      }
    });
  }
  for (int i = 0; i < 20; ++i) barrier(group);
  for (std::thread& thread : threads) thread.join();
  expect(sums[0] == 3 && sums[1] == 3, "send and recv");
}

// Tests collectives that write their result into the memory of their input.
void in_place(Group& group) {
  const size_t p = static_cast<size_t>(group.size()), r = static_cast<size_t>(group.rank()), count = 1001;
  const std::vector<int64_t> own(count, static_cast<int64_t>(r));
  std::vector<int64_t> all(p * count);
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(r * count));
  all_gather(group, all.data() + r * count, all.data(), count, DataType::kInt64);
  for (size_t i = 0; i < all.size(); ++i)
    expect(all[i] == static_cast<int64_t>(i / count), "all-gather in place");
  const std::vector<size_t> counts(p, count);
  all_to_all(group, all.data(), counts, all.data(), counts, DataType::kInt64);
  for (const int64_t value : all) expect(value == static_cast<int64_t>(r), "all-to-all in place");
  reduce_scatter(group, all.data(), all.data() + r * count, count, DataType::kInt64, ReduceOp::kSum);
  for (size_t i = 0; i < count; ++i)
    expect(all[r * count + i] == static_cast<int64_t>(p * (p - 1) / 2), "reduce-scatter in place");
}

std::string fault_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

void expect_fault(const std::function<void()>& call, const std::string& part) {
  const std::string said = fault_of(call);
  expect(said.find(part) != std::string::npos, "said: " + said + "; not: " + part);
}

struct Job {
  std::shared_ptr<MpiLibrary> library;
  ProcessIdentity self;

  std::unique_ptr<Group> group(const std::string& name, const std::vector<int>& members,
                               std::chrono::milliseconds timeout = std::chrono::seconds(60),
                               std::shared_ptr<FlightRecorder> recorder = nullptr) const {
    GroupSetup setup;
    setup.name = name;
    setup.world_ranks = members;
    setup.rank = static_cast<int>(std::find(members.begin(), members.end(), self.rank) - members.begin());
    setup.size = static_cast<int>(members.size());
    setup.options.timeout = timeout;
    setup.options.recorder = std::move(recorder);
    return make_mpi_group(library, setup);
  }
  std::shared_ptr<FlightRecorder> recorder(const char* folder) const {
    return std::make_shared<FlightRecorder>(recorder_file(folder, self.rank), self.rank, self.world_size,
                                            "node");
  }
  std::vector<int> all() const {
    std::vector<int> ranks(static_cast<size_t>(self.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

// Tests calls that end with an error and leave the group usable.
void refusals(Group& group) {
  char small[16] = {};
  if (group.rank() == 0) send(group, "12345678", 8, 1, 7);
  if (group.rank() == 1)
    expect_fault([&] { recv(group, small, 16, 0, 7); }, "received 8 bytes instead of 16");
  expect_fault([&] { send(group, small, 1, group.rank(), 7); }, "cannot send to itself");
  expect_fault([&] { broadcast(group, small, 1, DataType::kInt8, group.size()); },
               "does not exist in a group");
  expect_fault([&] { all_reduce(group, small, 1, DataType::kFp32, ReduceOp::kBitOr); }, "are for integers");
  barrier(group);
}

// Tests what a rank's flight recorder contains for each kind of operation. It is the same as with Starling's
// engine.
void recorded(const Job& job) {
  const int rank = job.self.rank, p = job.self.world_size, next = (rank + 1) % p, before = (rank + p - 1) % p;
  const size_t places = static_cast<size_t>(p);
  {
    const auto group =
        job.group("all of them", job.all(), std::chrono::seconds(60), job.recorder("recorded"));
    std::vector<int32_t> in(places), out(places);
    barrier(*group);
    broadcast(*group, in.data(), 1, DataType::kInt32, 1);
    all_reduce(*group, in.data(), places, DataType::kInt32, ReduceOp::kMax);
    reduce_scatter(*group, in.data(), out.data(), 1, DataType::kInt32, ReduceOp::kSum);
    all_gather(*group, in.data(), out.data(), 1, DataType::kInt32);
    const std::vector<size_t> ones(places, 1);
    all_to_all(*group, in.data(), ones, out.data(), ones, DataType::kInt32);
    send(*group, in.data(), 4, next, 0x50000007);
    expect_fault([&] { recv(*group, in.data(), 8, before, 0x50000007); }, "received 4 bytes instead of 8");
  }
  const std::string bytes = std::to_string(4 * p);
  const std::vector<std::string> expected{
      "all-gather #1 (256 bytes uint8)",  // exchanges the hosts of the ranks
      "barrier #2",
      "broadcast #3 (4 bytes int32 from rank 1)",
      "all-reduce #4 (max of " + bytes + " bytes int32)",
      "reduce-scatter #5 (sum of 4 bytes int32)",
      "all-gather #6 (4 bytes int32)",
      "all-to-all #7 (int32)",
      "send of 4 bytes with tag 1342177287 to rank " + std::to_string(next),
      "recv of 8 bytes with tag 1342177287 from rank " + std::to_string(before)};
  std::vector<std::string> found;
  for (const Recording& recording : read_recordings("recorded")) {
    if (recording.rank != rank) continue;
    expect(recording.groups == std::vector<std::string>{"all of them"}, "the group's name in its recording");
    for (const Record& record : recording.records) {
      found.push_back(describe(record));
      const RecordState end = found.size() < expected.size() ? RecordState::kEnded : RecordState::kFailed;
      expect(record.state == end && record.ended_ns >= record.began_ns, found.back() + ": its end");
    }
  }
  for (size_t i = 0; i < std::max(found.size(), expected.size()); ++i)
    expect(i < found.size() && i < expected.size() && found[i] == expected[i],
           "operation " + std::to_string(i) + " of a recording");
}

void all_of_it(const Job& job) {
  const auto world = job.group("world", job.all());
  expect(world->rank() == job.self.rank && world->size() == job.self.world_size, "rank and size");
  expect(world->local_ranks() == std::vector<int>{job.self.rank} && world->host_of(0) != "?", "places");
  expect(world->allocate_window(100)->region(0)[99] == std::byte{0}, "a window");
  const int cases = reductions(*world) + moves(*world);
  in_place(*world);
  ring_of_messages(*world);
  for (int i = 0; i < 5; ++i) check_started(*world);
  refusals(*world);
  recorded(job);
  // Two disjoint groups have one name. A further group of all ranks has another order.
  std::vector<int> members;
  for (int r = job.self.rank % 2; r < job.self.world_size; r += 2) members.push_back(r);
  if (members.size() > 1) {
    const auto half = job.group("half", members);
    expect(half->size() == static_cast<int>(members.size()), "a part of the ranks");
    moves(*half);
  }
  barrier(*job.group("other", job.all()));
  expect(world->traffic().socket_sent > 0, "traffic");
  barrier(*world);
  if (job.self.rank == 0) std::printf("%d cases over MPI on %d ranks\n", cases, job.self.world_size);
}

// Compares the counted bytes with the formulas of docs/reference/collectives.md and docs/reference/codecs.md.
void bytes(const Job& job) {
  const auto world = job.group("world", job.all());
  for (const size_t count : {0, 1, 1'000, 30'011}) check_counted_bytes(*world, count);
  for (const size_t count : {1'000, 20'011}) check_codec_bytes(*world, count);
  // An average of short integers reaches MPI as int32.
  std::vector<int8_t> data(1'000 * static_cast<size_t>(world->size()));
  const uint64_t others = static_cast<uint64_t>(world->size()) - 1;
  const Counted reduced = counted_bytes(*world, "average of int8", [&] {
    all_reduce(*world, data.data(), data.size(), DataType::kInt8, ReduceOp::kAvg);
  });
  expect(reduced.own == 2 * others * 4 * 1'000, "bytes of an average of int8");
  barrier(*world);
  if (job.self.rank == 0) std::printf("bytes over MPI on %d ranks\n", job.self.world_size);
}

// Waits until the flight recorders show every other rank in `operation`, which this rank has not entered.
void wait_until_waited_for(const Job& job, const std::string& operation) {
  const auto there = [&](const Recording& recording) {
    if (recording.rank == job.self.rank) return true;
    return !recording.records.empty() && describe(recording.records.back()) == operation;
  };
  for (;;) {
    const std::vector<Recording> all = read_recordings("recorder");
    if (std::all_of(all.begin(), all.end(), there)) return;
    std::this_thread::yield();
  }
}

void fault(const Job& job, const std::string& kind) {
  const auto world = job.group("world", job.all(), std::chrono::seconds(60), job.recorder("recorder"));
  const int rank = job.self.rank;
  std::vector<float> data(64);
  std::string said;
  std::unique_ptr<Group> hasty, faulty;  // these groups must live until MPI ends in this process
  if (kind == "unequal") {
    said = fault_of([&] {
      rank == 1 ? barrier(*world) : all_reduce(*world, data.data(), 64, DataType::kFp32, ReduceOp::kSum);
    });
  } else if (kind == "splits" || kind == "many") {
    faulty = job.group("faulty", job.all());
    std::vector<size_t> counts(static_cast<size_t>(job.self.world_size), 1);
    const std::vector<size_t> expected = counts;
    if (rank == 1) counts[0] = kind == "many" ? kMpiMostElements : 2;
    std::vector<float> out(64);
    said = fault_of([&] { all_to_all(*faulty, data.data(), counts, out.data(), expected, DataType::kFp32); });
  } else if (kind == "late") {
    // Rank 1 does not enter the barrier before ranks 0 and 2 have given up.
    hasty = job.group("hasty", job.all(), std::chrono::milliseconds(3000));
    char word = 0;
    for (int r = 0; rank == 1 && r < job.self.world_size; ++r)
      if (r != 1) recv(*world, &word, 1, r, 1);
    if (rank != 1) said = fault_of([&] { barrier(*hasty); });
    if (rank != 1) expect_fault([&] { barrier(*hasty); }, said);
    if (rank != 1) send(*world, &word, 1, 1, 1);
  } else if (kind == "dead") {
    if (rank == 1) {
      wait_until_waited_for(job, "barrier #2");
      ::raise(SIGKILL);
    }
    said = fault_of([&] { barrier(*world); });
  }
  // The message goes to a file, because mpiexec may end before it has forwarded all output of its ranks.
  std::ofstream("said-" + std::to_string(rank)) << said << std::flush;
  if (kind == "unequal" || kind == "dead") return;
  barrier(*world);  // the end of one rank would end ranks that have not written their message
}

void other_build() {
  const SharedObject object("starling_mpi", "comm.engine", "no remedy");
  const MpiOpening opening{kMpiPluginAbi + 1};
  std::array<char, 200> error{};
  const MpiLibrary* library =
      reinterpret_cast<OpenMpiFunction>(object.find(kOpenMpiName))(&opening, error.data(), error.size());
  expect(library == nullptr, "a plug-in of another build");
  std::printf("%s\n", error.data());
}

int rank_main(const Environment& environment, const std::string& what) {
  if (what == "other-build") {
    other_build();
    return 0;
  }
  const ProcessIdentity& self = environment.identity;
  const Job job{open_mpi(self.rank, self.world_size, name_of(self.origin)), self};
  if (what.empty()) {
    all_of_it(job);
    return 0;
  }
  if (what == "bytes") {
    bytes(job);
    return 0;
  }
  fault(job, what);
  return 3;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::rank_main(starling::read_environment(::environ), argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "wrong: %s\n", error.what());
    return 1;
  }
}
