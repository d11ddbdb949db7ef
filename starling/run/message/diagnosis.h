// Reads the flight recorders of a run that has stalled, while its ranks still run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "starling/comm/recorder/flight_recorder.h"

namespace starling {

// Returns the lines of who_waits() about the ranks of `host`. Recordings of ranks on other hosts are only
// counted in one more line. Another host maps those files, so their pages may arrive late over a network file
// system (NFS). Judging by old pages would blame ranks that are well.
std::vector<std::string> who_waits_on(const std::string& host, const std::vector<Recording>& recordings);

// Returns who_waits_on() for this host and the recordings in `folder`.
std::vector<std::string> who_waits_here(const std::filesystem::path& folder);

}  // namespace starling
