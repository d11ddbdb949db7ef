// The strategy statistics of a run with a parameter server, by name.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/server/server_table_stats.h"

namespace starling {

// Sums the counts of the shards to one map:
//
//   max_staleness, staleness_<n>            reads that missed n clocks of the slowest worker, over all shards
//   requests_<shard>                        reads and pushes that the shard served
//   pushes_<worker>_<shard>                 0 if the worker owns nothing on the shard
//   updates_<shard>, late_dropped, retired_workers
std::map<std::string, double> server_stats(const std::vector<ServerTableStats>& shards);

}  // namespace starling
