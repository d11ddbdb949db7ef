// What a run with a parameter server reports of itself: name -> number.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/server/table_stats.h"

namespace starling {

// By shard in, one map out:
//   max_staleness, staleness_<n>            reads that missed n clocks of the slowest worker, over all shards
//   requests_<shard>                        reads and pushes that the shard served
//   pushes_<worker>_<shard>                 0 where the worker owns nothing
//   updates_<shard>, late_dropped, retired_workers
std::map<std::string, double> server_fingerprint(const std::vector<TableStats>& shards);

}  // namespace starling
