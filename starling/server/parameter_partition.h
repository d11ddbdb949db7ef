// A Partitioning assigns the parameters to server shards. Every parameter is a key. A key longer than 4 MB is
// cut into partitions of 4 MB and a rest. The partitions are assigned in order of size, the largest first,
// each to the shard that has the fewest bytes so far. If several shards have equally few, the lowest one gets
// the partition. The result is deterministic. Without homes (make_partitioning), no shard holds more than the
// mean plus one partition.
#pragma once

#include <cstddef>
#include <vector>

namespace starling {

// Largest partition in bytes. A larger value means fewer keys and less even shards.
inline constexpr size_t kPartitionBytes = 4u << 20;

// A contiguous part of a parameter. Counts and offsets are in elements.
struct Partition {
  size_t parameter = 0;  // index of the parameter
  size_t begin = 0;      // first element within the parameter
  size_t count = 0;      // number of elements
  int shard = 0;         // the shard that holds the partition
};

// The partitions of a model and their shards.
struct Partitioning {
  std::vector<Partition> partitions;          // by parameter, then by begin
  std::vector<std::vector<size_t>> of_shard;  // indices into partitions, ascending

  // Returns the number of shards.
  int shards() const { return static_cast<int>(of_shard.size()); }
  // Returns the sizes of the partitions of a shard, in the order of of_shard.
  std::vector<size_t> sizes_of(int shard) const;
};

// Assigns the parameters to `shards` shards. sizes: the elements of each parameter.
//
// homes: if a model is sharded over the ranks of a group, the rank that owns each parameter, or -1 for any
// rank. Empty: any rank for all parameters. The shards are divided evenly among the homes, so that a rank
// communicates only with the shards of its home. If there are at least as many shards as homes, shard s holds
// parameters of home s mod homes only. Otherwise the parameters of home h are on shard h mod shards.
//
// Errors: ConfigError if `shards` is below 1 or if a shard would hold nothing.
Partitioning make_partitioning(const std::vector<size_t>& sizes, size_t element_bytes, int shards,
                               size_t partition_bytes = kPartitionBytes, const std::vector<int>& homes = {});

}  // namespace starling
