// Tests ranks on NUMA nodes with an invented topology. The machine needs no NUMA nodes.
#include "starling/comm/host/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "starling/comm/bootstrap.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/collective/shm_numa_all_reduce.h"
#include "starling/comm/reduce/reduce_kernels.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Numa, CpuListsAsTheKernelWritesThem) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list("7"), ElementsAre(7));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());  // a node that has memory only
  EXPECT_THAT(parse_cpu_list("2,5-3,9"), ElementsAre(2));
  EXPECT_THAT(parse_cpu_list("0-99999999"), IsEmpty());
  EXPECT_THAT(parse_cpu_list("4294967296"), IsEmpty());
  EXPECT_EQ(parse_cpu_list("0-65535,0-65535,0-65535").size(), 65536U);
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({7}), "7");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(Numa, TheNodeThatHasAllProcessors) {
  const TempDir folder;
  for (const auto& [node, list] :
       {std::pair{"node0", "0-3,8-11"}, std::pair{"node1", "4-7,12-15"}, std::pair{"node2", ""}}) {
    std::filesystem::create_directory(folder.path() / node);
    std::ofstream(folder.path() / node / "cpulist") << list << "\n";
  }
  std::ofstream(folder.path() / "online") << "0-2\n";
  const std::string nodes = folder.path();
  EXPECT_EQ(numa_node_of({0, 9}, nodes), 0);
  EXPECT_EQ(numa_node_of({4, 5, 12}, nodes), 1);
  EXPECT_EQ(numa_node_of({3, 4}, nodes), -1);
  EXPECT_EQ(numa_node_of({16}, nodes), -1);
  EXPECT_EQ(numa_node_of({}, nodes), -1);
  EXPECT_EQ(numa_node_of({0}, nodes + "/none"), -1);
}

TEST(Numa, PlacesWhereASecondLevelPays) {
  const NumaPlaces places = numa_places({1, 0, 1, 0}, 2);
  EXPECT_THAT(places.nodes, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_EQ(places.node, 0);
  EXPECT_EQ(places.place, 1);
  EXPECT_THAT(numa_places({0, 0, 0, 0}, 0).nodes, IsEmpty());   // one node
  EXPECT_THAT(numa_places({0, 1}, 0).nodes, IsEmpty());         // one rank per node
  EXPECT_THAT(numa_places({0, 0, 1}, 0).nodes, IsEmpty());      // unequal numbers
  EXPECT_THAT(numa_places({0, 0, 1, -1}, 0).nodes, IsEmpty());  // one rank is not bound
  EXPECT_THAT(numa_places({}, 0).nodes, IsEmpty());
}

using Tensor = std::vector<std::byte>;

Tensor reduced(const std::vector<Tensor>& from, DataType type, ReduceOp op, int divisor) {
  Tensor to(from.front().size());
  std::vector<const void*> sources;
  sources.reserve(from.size());
  for (const Tensor& t : from) sources.push_back(t.data());
  void* destinations[] = {to.data()};
  reduce_naive({.sources = sources,
                .destinations = destinations,
                .count = to.size() / size_of(type),
                .type = type,
                .op = summed(op),
                .divisor = divisor});
  return to;
}

// Returns the sums of the nodes in the order of their ranks, added over the nodes in the order of their first
// ranks.
Tensor reduced_by_node(const std::vector<int>& node_of, DataType type, size_t count, ReduceOp op, int salt) {
  std::vector<Tensor> sums;
  for (const auto& node : numa_places(node_of, 0).nodes) {
    std::vector<Tensor> own;
    own.reserve(node.size());
    for (const int r : node) own.push_back(test_tensor(type, count, r, salt));
    sums.push_back(reduced(own, type, op, 1));
  }
  return reduced(sums, type, op, op == ReduceOp::kAvg ? static_cast<int>(node_of.size()) : 1);
}

struct Example {
  DataType type;
  ReduceOp op;
  size_t count;
  int salt;
  Tensor want;
};

std::vector<Example> examples(const std::vector<int>& node_of) {
  std::vector<Example> all;
  int salt = 0;
  for (const auto& [type, op] :
       {std::pair{DataType::kFp32, ReduceOp::kSum}, std::pair{DataType::kFp32, ReduceOp::kAvg},
        std::pair{DataType::kBf16, ReduceOp::kAvg}, std::pair{DataType::kInt64, ReduceOp::kMax}}) {
    for (const size_t bytes : {kNumaBytes, kNumaBytes + 8 * 1001}) {
      const size_t count = bytes / size_of(type);
      ++salt;
      all.push_back({type, op, count, salt, reduced_by_node(node_of, type, count, op, salt)});
    }
  }
  return all;
}

class NumaAllReduceTest : public testing::TestWithParam<std::vector<int>> {
 protected:
  // Runs a group of threads, one per rank, on the nodes of the parameter. Each rank has a window of 2 MB.
  void on_all(const std::function<void(Group&, std::byte* own)>& body) {
    run_ranks(static_cast<int>(GetParam().size()), [&](const ThreadRank& at) {
      GroupSetup setup;
      setup.rank = at.rank;
      setup.size = at.size;
      setup.numa_node = GetParam()[static_cast<size_t>(at.rank)];
      setup.options.timeout = std::chrono::seconds(60);
      const auto group = make_group(*at.store, setup);
      const auto window = group->allocate_window(size_t{2} << 20);
      body(*group, window->region(group->local_rank()));
    });
  }
};

TEST_P(NumaAllReduceTest, WithinTheNodesThenBetweenThem) {
  const std::vector<Example> all = examples(GetParam());
  on_all([&](Group& group, std::byte* own) {
    for (const Example& e : all) {
      const Tensor mine = test_tensor(e.type, e.count, group.rank(), e.salt);
      std::copy(mine.begin(), mine.end(), own);
      all_reduce(group, own, e.count, e.type, e.op);
      ASSERT_EQ(Tensor(own, own + mine.size()), e.want) << name_of(e.type) << e.count;
      barrier(group);  // the next values must not be written while a peer still reads
    }
  });
}

// An int8 element does not hold the sum of a node. Averages of such types use one level, which adds in 32
// bits and then divides.
TEST_P(NumaAllReduceTest, AveragesOfShortTypesDoNotOverflow) {
  on_all([](Group& group, std::byte* own) {
    constexpr size_t kCount = 2 * kNumaBytes;
    std::fill_n(reinterpret_cast<int8_t*>(own), kCount, int8_t{100});
    all_reduce(group, own, kCount, DataType::kInt8, ReduceOp::kAvg);
    EXPECT_TRUE(std::all_of(own, own + kCount, [](std::byte b) { return b == std::byte{100}; }));
    barrier(group);
    std::fill_n(reinterpret_cast<uint16_t*>(own), kCount / 2, float_to_fp16(40'000.0f));
    all_reduce(group, own, kCount / 2, DataType::kFp16, ReduceOp::kAvg);
    EXPECT_EQ(fp16_to_float(*reinterpret_cast<uint16_t*>(own)), 40'000.0f);
  });
}

TEST_P(NumaAllReduceTest, FewBytesPassBetweenTheNodes) {
  const size_t p = GetParam().size(), q = static_cast<size_t>(numa_places(GetParam(), 0).ranks_each()),
               m = p / q;
  on_all([&](Group& group, std::byte* own) {
    // Both sizes divide equally by 2, 3, 4 and 6 at cache lines. The smaller tensor is reduced in one level.
    for (const size_t bytes : {size_t{96} * 1024, size_t{96} * 1024 * 12}) {
      const TrafficCount before = group.traffic();
      all_reduce(group, own, bytes / 4, DataType::kFp32, ReduceOp::kSum);
      const TrafficCount after = group.traffic();
      EXPECT_EQ(after.window_published - before.window_published, 2 * bytes * (p - 1) / p);
      EXPECT_EQ(after.window_received - before.window_received, 2 * bytes * (p - 1) / p);
      EXPECT_EQ(after.window_far - before.window_far, 2 * bytes / p * (bytes >= kNumaBytes ? m - 1 : p - q));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Topologies, NumaAllReduceTest,
                         testing::Values(std::vector<int>{0, 0, 1, 1}, std::vector<int>{1, 0, 1, 0},
                                         std::vector<int>{0, 1, 2, 0, 1, 2}));

}  // namespace
}  // namespace starling
