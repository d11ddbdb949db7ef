// Partitioning: how the parameters are spread over server shards. Every parameter is a key; keys longer than 4 MB are cut
// into partitions of 4 MB and a rest, and the partitions are given out, the largest first, each to the shard that has the
// fewest bytes so far (on equal terms to the lower one): deterministic, and no shard has more than the mean plus a partition.
#pragma once

#include <cstddef>
#include <vector>

namespace starling {

inline constexpr size_t kPartitionBytes = 4u << 20;

// Counts and offsets are in elements.
struct Partition {
  size_t parameter = 0;  // index of the parameter that it is a part of
  size_t begin = 0;      // within the parameter
  size_t count = 0;
  int shard = 0;
};

struct Partitioning {
  std::vector<Partition> partitions;          // by parameter, then by begin
  std::vector<std::vector<size_t>> of_shard;  // indices into partitions, ascending

  int shards() const { return static_cast<int>(of_shard.size()); }
  // The sizes of a shard's partitions, in its order.
  std::vector<size_t> sizes_of(int shard) const;
  // Those of a shard's partitions, as positions in of_shard[shard], whose parameter has owned[parameter].
  std::vector<size_t> slots_of(int shard, const std::vector<bool>& owned) const;
};

// sizes: elements of each parameter. homes: where a model is divided over the ranks of a group, the rank that owns each
// parameter (−1, or none given: any). The shards are divided among the homes as evenly as they go: with as many shards as homes
// or more, shard s holds parameters of home s mod homes only; with fewer, those of home h are on shard h mod shards. So a rank
// has to do with the shards of its home alone. ConfigError where a shard would hold nothing.
Partitioning make_partitioning(const std::vector<size_t>& sizes, size_t element_bytes, int shards,
                               size_t partition_bytes = kPartitionBytes, const std::vector<int>& homes = {});

}  // namespace starling
