#include "starling/server/parameter_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "starling/base/error.h"
#include "starling/server/server_options.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

TEST(Partition, CutsLongParametersAtFourMegabytes) {
  const Partitioning p = make_partitioning({3 << 20, 10, 0}, 4, 1);
  // 12 MB are three partitions, 10 elements are one, and a parameter without elements has none.
  ASSERT_EQ(p.partitions.size(), 4u);
  EXPECT_EQ(p.partitions[1].begin, 1u << 20);
  EXPECT_EQ(p.partitions[2].count, 1u << 20);
  EXPECT_EQ(p.partitions[3].parameter, 1u);
  EXPECT_THAT(p.sizes_of(0), testing::ElementsAre(1 << 20, 1 << 20, 1 << 20, 10));
  EXPECT_EQ(make_partitioning({3 << 20}, 8, 1).partitions.size(), 6u);
}

TEST(Partition, CoversEveryElementOnceAndBalances) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<size_t> sizes(5 + random() % 20);
    for (size_t& size : sizes) size = 1 + random() % 5000;
    const int shards = 1 + static_cast<int>(random() % 5);
    const Partitioning p = make_partitioning(sizes, 8, shards, 8 * 512);
    std::vector<size_t> next(sizes.size(), 0);
    for (const Partition& part : p.partitions) {
      EXPECT_EQ(part.begin, next[part.parameter]);
      EXPECT_LE(part.count, 512u);
      next[part.parameter] += part.count;
    }
    EXPECT_EQ(next, sizes);
    std::vector<size_t> load(shards, 0);
    for (int s = 0; s < shards; ++s) {
      EXPECT_TRUE(std::is_sorted(p.of_shard[s].begin(), p.of_shard[s].end()));
      for (const size_t part : p.of_shard[s]) {
        EXPECT_EQ(p.partitions[part].shard, s);
        load[s] += p.partitions[part].count;
      }
    }
    EXPECT_LE(*std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
              512u);
  }
}

// If a model is sharded over the ranks of a group, each rank communicates only with the shards of its home.
TEST(Partition, ShardsBelongToHomes) {
  const std::vector<size_t> sizes = {10, 9, 8, 7, 6, 5};
  const std::vector<int> homes = {0, 0, 0, 1, 1, 2};
  for (const int shards : {1, 2, 3, 4}) {
    const Partitioning p = make_partitioning(sizes, 4, shards, kPartitionBytes, homes);
    for (const Partition& part : p.partitions) {
      const int home = homes[part.parameter];
      EXPECT_EQ(part.shard % std::min(shards, 3), home % std::min(shards, 3)) << shards << " shards";
    }
  }
  // Home 2 has one parameter.
  EXPECT_THAT(error_of<ConfigError>([&] { make_partitioning(sizes, 4, 6, kPartitionBytes, homes); }),
              testing::HasSubstr("server 5 of 6 would hold nothing"));
}

TEST(Partition, RefusesMoreShardsThanPartitions) {
  EXPECT_THAT(error_of<ConfigError>([] { make_partitioning({10, 20}, 4, 3); }),
              testing::AllOf(testing::HasSubstr("--servers: 3 servers for 2 partitions"),
                             testing::HasSubstr("give at most 2")));
  EXPECT_THAT(error_of<ConfigError>([] { make_partitioning({10}, 4, 0); }),
              testing::HasSubstr("give at least 1"));
}

TEST(ServerOptions, RefusesWhatCannotBe) {
  const auto with = [](auto change) {
    ServerOptions options;
    options.workers = 4;
    change(options);
    return error_of<ConfigError>([&] { check_server_options(options); });
  };
  EXPECT_EQ(with([](ServerOptions&) {}), "");
  EXPECT_THAT(with([](ServerOptions& o) { o.staleness = -1; }), testing::HasSubstr("--staleness: -1"));
  EXPECT_THAT(with([](ServerOptions& o) { o.backup = 4; }), testing::HasSubstr("give 0 to 3"));
  EXPECT_THAT(with([](ServerOptions& o) { o.backup = -1; }), testing::HasSubstr("--backup"));
  EXPECT_THAT(with([](ServerOptions& o) { o.backup = 1, o.staleness = 2; }),
              testing::HasSubstr("require --staleness 0"));
  EXPECT_THAT(with([](ServerOptions& o) { o.lambda = {1, 1, 1, 1}; }),
              testing::HasSubstr("exchange.worker_weights"));
  EXPECT_THAT(with([](ServerOptions& o) { o.lambda = {1}, o.staleness = 1; }),
              testing::HasSubstr("1 weights for 4 workers"));
  EXPECT_THAT(with([](ServerOptions& o) { o.lambda = {1, 0, 1, 1}, o.staleness.reset(); }),
              testing::HasSubstr("0 is no weight"));
  EXPECT_THAT(with([](ServerOptions& o) { o.workers = 0; }), testing::HasSubstr("at least one worker"));
}

}  // namespace
}  // namespace starling
