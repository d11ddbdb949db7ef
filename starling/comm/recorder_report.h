// What flight recorders say about a job that stopped: who waited for whom.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/recorder.h"

namespace starling {

// "all-reduce #57 (sum of 4096 bytes fp32)", "recv of 64 bytes with tag 3 from rank 1", "shared memory for rank 1
// (slot 3, number 57)".
std::string describe(const Record& record);

// For each group whose ranks are not all done with the same collective: who is in the farthest one, and who has not begun
// it. Then the sends and receives under way. One line each; empty where nobody waits. Times are counted back from the last
// entry of all recordings.
std::vector<std::string> who_waits(const std::vector<Recording>& recordings);

// who_waits, and the last `count` operations of each rank, for `starling doctor --recorder`.
std::string recorder_report(const std::vector<Recording>& recordings, size_t count);

}  // namespace starling
