// One round of the promise that a dead rank is known within 5 s and leaves nothing behind: ranks as processes run one
// collective again and again, one of them is killed (-9) at a random moment, and the others are asked what they saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/net/data_security.h"
#include "starling/testing/forked_job.h"

namespace starling {

struct KillRound {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // kSend: each rank sends to the next and receives
  Transport transport = Transport::kSharedMemory;
  DataSecurity security = DataSecurity::kNone;
  int ranks = 4;
  uint64_t seed = 1;  // of the victim, the moment, the algorithm and the sizes
};

struct KillOutcome {
  int victim = -1;
  double slowest_s = 0;               // from the kill until the last of the others had named somebody
  std::vector<std::string> problems;  // what was not as promised
};

// Forks: call it while this process has no threads of its own. Every wait has an end. Looks for what is left behind in this
// process's children and descriptors, /dev/shm, /proc/net/unix and /proc/net/tcp.
KillOutcome play_kill_round(const KillRound& round);
// The same; its problems, a line each, behind what repeats the round. Empty where all was as promised.
std::string problems_of(const KillRound& round);

}  // namespace starling
