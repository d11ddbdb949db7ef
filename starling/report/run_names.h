// Short names for the runs of a comparison: "gossip" for "gossip:graph=ring:optimizer.momentum=0.5".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

// What a short name is made from.
struct NamedRun {
  std::string flags;  // the text that --runs gives, or the name of a table [runs.NAME]
  int64_t ranks = 0;  // 0 if unknown: the run failed before it started
};

// Returns one name for each run, in the same order. No two names are equal.
//
// A name is the run's exchange, codec, schedule, sharding or mesh, for example "admm", "1bit" or "ZeRO-3".
// If several runs have the same name, the flags in which they differ follow, for example "gossip ring".
// If runs differ in their number of ranks, " ×R" follows for the runs whose number R is not the usual one.
// The first run is the reference of the comparison. Its ranks are not compared with those of the others.
std::vector<std::string> short_names(const std::vector<NamedRun>& runs);

}  // namespace starling
