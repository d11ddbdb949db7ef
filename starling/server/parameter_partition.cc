#include "starling/server/parameter_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "starling/base/error.h"

namespace starling {

std::vector<size_t> Partitioning::sizes_of(int shard) const {
  std::vector<size_t> sizes;
  for (const size_t p : of_shard[shard]) sizes.push_back(partitions[p].count);
  return sizes;
}

namespace {

bool may_hold(int shard, int shards, int home, int homes) {
  if (home < 0) return true;
  return shards >= homes ? shard % homes == home : shard == home % shards;
}

}  // namespace

Partitioning make_partitioning(const std::vector<size_t>& sizes, size_t element_bytes, int shards,
                               size_t partition_bytes, const std::vector<int>& homes) {
  const size_t longest = std::max<size_t>(1, partition_bytes / element_bytes);
  Partitioning out;
  for (size_t p = 0; p < sizes.size(); ++p) {
    for (size_t begin = 0; begin < sizes[p]; begin += longest)
      out.partitions.push_back({p, begin, std::min(longest, sizes[p] - begin), 0});
  }
  if (shards < 1) throw ConfigError("--servers", fmt::format("{} servers; give at least 1", shards));
  if (static_cast<size_t>(shards) > out.partitions.size()) {
    throw ConfigError(
        "--servers",
        fmt::format("{} servers for {} partitions (one per parameter, cut at {} MB): some servers would "
                    "hold nothing; give at most {}",
                    shards, out.partitions.size(), partition_bytes >> 20, out.partitions.size()));
  }
  std::vector<size_t> order(out.partitions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return out.partitions[a].count > out.partitions[b].count; });
  const int home_count = homes.empty() ? 0 : *std::max_element(homes.begin(), homes.end()) + 1;
  std::vector<size_t> load(shards, 0);
  for (const size_t p : order) {
    const int home = homes.empty() ? -1 : homes[out.partitions[p].parameter];
    int least = -1;
    for (int s = 0; s < shards; ++s) {
      if (may_hold(s, shards, home, home_count) && (least < 0 || load[s] < load[least])) least = s;
    }
    load[least] += out.partitions[p].count;
    out.partitions[p].shard = least;
  }
  for (int s = 0; s < shards; ++s) {
    if (load[s] > 0) continue;
    throw ConfigError("--servers",
                      fmt::format("server {} of {} would hold nothing: the stage that it serves has too few "
                                  "partitions (one per parameter, cut at {} MB); give fewer servers",
                                  s, shards, partition_bytes >> 20));
  }
  out.of_shard.resize(shards);
  for (size_t p = 0; p < out.partitions.size(); ++p) out.of_shard[out.partitions[p].shard].push_back(p);
  return out;
}

}  // namespace starling
