// Checks a schedule before anything runs: it must be complete and free of deadlock. The checker also computes
// its memory.
//
// Complete means: each rank goes forward and backward once for each micro-batch and chunk. It sends and
// receives once what its neighbors need, and nothing else. An action comes after the actions of its own rank
// that it needs.
//
// Freedom from deadlock is proved by executing the schedule symbolically. No action depends on a value, and a
// message is matched by sender, kind, micro-batch and chunk. One execution that ends therefore proves that
// all executions end, however long actions take.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// How a send behaves.
enum class Delivery {
  kPosted,     // a send is queued and never waits, as in the schedule executor
  kRendezvous  // a send waits until the receiver reaches its receive
};

// What the checker computes.
struct ScheduleFacts {
  // By rank: the largest number of pairs (micro-batch, chunk) whose forward is done and whose backward is
  // not. The rank holds their activations. 1f1b: at most ranks − rank; gpipe: the number of micro-batches.
  std::vector<int> live;
  int messages = 0;  // of the whole step, on all ranks
};

// Checks the schedule and returns its facts. Errors: ConfigError. `where` is file:line:column for schedules
// from a file, and "schedule NAME" otherwise. The message of a deadlock names the ranks in the cycle, the
// action that each has reached, and the action that each waits for.
ScheduleFacts check_schedule(const Schedule& schedule, Delivery delivery = Delivery::kPosted);

// The receive that matches a send, or the send that matches a receive, with its rank.
struct Counterpart {
  int rank = 0;
  Action action;
};
// Returns the counterpart of a send or a receive. The schedule must be complete.
Counterpart counterpart_of(const Schedule& schedule, int rank, const Action& action);

}  // namespace starling
