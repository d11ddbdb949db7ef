// The group of a test whose ranks are processes (forked_ranks.h), by every way between them, and what such ranks do: collectives and
// messages against the naive results, and all-reduces until one fails.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "starling/comm/bootstrap.h"
#include "starling/net/job_key.h"
#include "starling/net/store.h"

namespace starling {

// Ways between ranks of one machine.
enum class Transport {
  kSharedMemory,
  kTcp,    // between all ranks, on loopback
  kMixed,  // two made-up hosts with half of the ranks each: shared memory inside, TCP between
  kUcx     // between all ranks, on loopback, by what UCX_TLS says
};
const char* name_of(Transport transport);
// Why no group can be made over it here; empty where one can.
std::string unavailable(Transport transport);

// What all ranks of a job know; made before they are forked.
struct ForkedJob {
  Transport transport = Transport::kSharedMemory;
  JobIdentity identity{make_job_key(), "forked-job"};
  int size = 3;
  std::chrono::milliseconds timeout{20'000};
  Algorithm algorithm = Algorithm::kAuto;

  // All are on "node-a"; of kMixed the second half on "node-b".
  GroupSetup setup_of(int rank) const;
  // The group of all ranks; the store outlives it.
  std::unique_ptr<Group> join(int rank, Store& store) const { return make_group(store, setup_of(rank)); }
};

// "WHAT/RANK": where a rank puts what it says.
std::string rank_key(const char* what, int rank);

// Every collective of `count` elements, and the all-reduce in a window too; throws Error naming the first whose result is not the naive
// one. On all ranks.
void check_collectives(Group& group, size_t count);
// The same of messages around a ring, short and long, all sending before they receive.
void check_mail(Group& group);

// All-reduces until one fails; puts "ready" after a few, then "fault": "timeout" or "comm", the culprit and the message.
void run_until_fault(Group& group, Store& store);

}  // namespace starling
