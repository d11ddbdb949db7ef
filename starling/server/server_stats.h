// The strategy statistics of a run with a parameter server, by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/server/server_table_stats.h"

namespace starling {

// Returns the counts of the shards as one map:
//
//   max_staleness                           the maximum over all shards
//   staleness_<n>                           reads that missed n clocks of the slowest worker, over all shards
//   requests_<shard>                        reads and pushes that the shard served
//   pushes_<worker>_<shard>                 0 if the worker owns nothing on the shard
//   updates_<shard>                         updates of the shard
//   late_dropped                            the sum over all shards
//   retired_workers                         lost workers: the maximum over all shards
std::map<std::string, double> server_stats(const std::vector<ServerTableStats>& shards);

}  // namespace starling
