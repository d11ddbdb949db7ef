// Reports about the flight recorders of a job that stopped: which ranks wait, and for which ranks.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/recorder/flight_recorder.h"

namespace starling {

// Returns a record as text. A collective is for example "all-reduce #57 (sum of 4096 bytes fp32)". A message
// is for example "recv of 64 bytes with tag 3 from rank 1". A wait in shared memory is for example "a wait
// for rank 1 in shared memory (counter 3, value 57)".
std::string describe(const Record& record);

// Returns one line per rank that waits or that other ranks wait for. It is empty if no rank waits.
// First come the groups in which some rank has not ended the latest collective, or has failed in it. For each
// such group, the lines say which ranks are in that collective, which have ended it, and which have not begun
// it. Then come the sends, the receives and the waits of LocalSync that have not ended or have failed. Times
// count back from the last entry of all recordings.
std::vector<std::string> who_waits(const std::vector<Recording>& recordings);

// Returns who_waits() and the last `count` operations of each rank, for `starling doctor --recorder`.
std::string recorder_report(const std::vector<Recording>& recordings, size_t count);

}  // namespace starling
