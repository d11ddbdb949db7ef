// KillRound: tests that all other ranks know of a dead rank within 5 s, and that the job leaves nothing
// behind.
//
// In a round, ranks that are processes call one collective again and again. One of them is killed (SIGKILL)
// at a random moment. The other ranks report what they saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/types.h"
#include "starling/net/security/data_security.h"
#include "starling/testing/forked_job.h"

namespace starling {

// KillRound describes a round.
struct KillRound {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // kSend: each rank sends to the next and receives
  Transport transport = Transport::kSharedMemory;
  DataSecurity security = DataSecurity::kNone;
  int ranks = 4;
  uint64_t seed = 1;  // determines the victim, the moment, the algorithm and the sizes
};

// KillOutcome is what happened.
struct KillOutcome {
  int victim = -1;
  double slowest_s = 0;               // from the kill until the last other rank has named a rank
  std::vector<std::string> problems;  // what was not as promised
};

// Runs a round. It forks, so call it while this process has no threads. Every wait has an end. It looks for
// leftovers in this process's children and descriptors, in /dev/shm, /proc/net/unix and /proc/net/tcp.
KillOutcome play_kill_round(const KillRound& round);
// Runs a round and returns its problems, one per line, after the values that repeat the round. Empty if
// there were no problems.
std::string problems_of(const KillRound& round);

}  // namespace starling
