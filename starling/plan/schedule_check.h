// Proves of a schedule's table, before anything runs, that it is complete, free of deadlock, and what it holds in memory.
//
// Complete: every rank goes forward and backward once for each micro-batch and chunk, sends and receives once what its
// neighbours need, and nothing else; what an action needs of its own rank comes before it.
// Free of deadlock: the table is executed symbolically. No action depends on a value, and a message is matched by sender,
// kind, micro-batch and chunk, so one execution that ends proves that all end, however long actions take.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

enum class Delivery {
  kPosted,     // a send is left to a queue and never waits: what the executor does
  kRendezvous  // a send waits until the receiver stands at its recv
};

struct ScheduleFacts {
  // By rank: the largest number of (micro-batch, chunk) whose forward is done and whose backward is not, the activations
  // that the rank holds for backward. 1f1b: at most ranks − rank; gpipe: the micro-batches.
  std::vector<int> live;
  int messages = 0;  // of the whole step
};

// Errors: ConfigError. `where` is file:line:column for tables read from a file, else "schedule NAME". A deadlock names the
// ranks in the circle, the action each has come to and the one it waits for.
ScheduleFacts check_schedule(const Schedule& schedule, Delivery delivery = Delivery::kPosted);

// For a send the recv that takes it and the reverse, with the rank which has it. Only for actions that a complete table has.
struct Counterpart {
  int rank = 0;
  Action action;
};
Counterpart counterpart_of(const Schedule& schedule, int rank, const Action& action);

}  // namespace starling
