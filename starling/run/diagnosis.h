// What the flight recorders of a run that stops are good for while its ranks still run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "starling/comm/recorder.h"

namespace starling {

// who_waits among the ranks of `host`. The recordings of others are counted in one more line, not judged: they are files that another host
// has mapped, whose pages may come late over a network (NFS), and old ones would blame ranks that are well.
std::vector<std::string> who_waits_on(const std::string& host, const std::vector<Recording>& recordings);

// The same for this host and the recordings in `folder`.
std::vector<std::string> who_waits_here(const std::filesystem::path& folder);

}  // namespace starling
