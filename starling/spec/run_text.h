// Parses short descriptions of runs, for commands that derive several runs from one configuration (`starling
// compare --runs …`).
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// Splits a list of runs at commas. If the text contains a semicolon, it is split at semicolons instead, so
// that values may contain commas: "all-reduce,gossip", "all-reduce; mesh=replica=2,stage=2". Throws
// ConfigError ("--runs") if there is no run, or if a run occurs twice.
std::vector<std::string> split_runs(const std::string& text);

// Returns `base` with the values of a run:
//
//   NAME                  the table [runs.NAME] of one of `files`, otherwise the exchange of that name
//   [NAME:]KEY=VALUE:…    KEY is a flag (staleness, codec, shard, mesh, n, …), a key (exchange.rho) or a
//                         key of the table `exchange` (rho). The text behind "codec=" is the codec with
//                         its options.
//
// If the ranks of `base` do not fit the mesh of the run, the number of ranks is that of the mesh. Throws
// ConfigError ("--runs TEXT") with a suggestion.
Config config_of_run(const Config& base, const std::vector<std::string>& files, const std::string& run);

}  // namespace starling
