// Runs by a few words, for commands that make several of one configuration (`starling compare --runs …`).
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"

namespace starling {

// The runs of a list between commas; between semicolons where there is one, so that values may hold commas:
// "all-reduce,gossip", "all-reduce; mesh=replica=2,stage=2". Errors: ConfigError ("--runs") for none, or one named twice.
std::vector<std::string> split_runs(const std::string& text);

// `base` with what a run says of itself:
//   NAME                    [runs.NAME] of one of `files`, else the exchange of that name
//   [NAME:]KEY=VALUE:…      KEY is a flag (staleness, codec, shard, mesh, n, …), a key (exchange.rho) or one of the table
//                           exchange (rho); behind "codec=" everything is the codec with its own options
// Where the run names a mesh that the ranks of `base` do not make up, the ranks are those that the mesh names.
// Errors: ConfigError ("--runs TEXT") that names what was probably meant.
Config config_of_run(const Config& base, const std::vector<std::string>& files, const std::string& run);

}  // namespace starling
