// ForkedJob: the group of a test whose ranks are processes (forked_ranks.h), over any transport, and what
// such ranks do.
//
// The ranks compare collectives and messages with naive results, or run all-reduces until one fails.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "starling/comm/bootstrap.h"
#include "starling/net/security/job_key.h"
#include "starling/net/store/store.h"

namespace starling {

// Transport is what connects the ranks, which all run on one machine.
enum class Transport {
  kSharedMemory,
  kTcp,    // TCP between all ranks, on loopback
  kMixed,  // two invented hosts with half of the ranks each: shared memory within, TCP between them
  kUcx     // UCX between all ranks, on loopback, by the transports in UCX_TLS
};
// Returns the transport's name: "shared-memory", "tcp" …
const char* name_of(Transport transport);
// Returns why no group can use the transport here. Empty if a group can.
std::string unavailable(Transport transport);

// ForkedJob is what all ranks of a job know. It is made before they are forked.
struct ForkedJob {
  Transport transport = Transport::kSharedMemory;
  JobIdentity identity{make_job_key(), "forked-job"};
  int size = 3;
  std::chrono::milliseconds timeout{20'000};
  Algorithm algorithm = Algorithm::kAuto;

  // Returns the setup of a rank. All ranks are on "node-a". For kMixed, the second half is on "node-b".
  GroupSetup setup_of(int rank) const;
  // Joins the group of all ranks. The store must outlive the group. The job's timeout begins when all
  // processes run and have loaded their transport.
  std::unique_ptr<Group> join(int rank, Store& store) const {
    const GroupSetup setup = setup_of(rank);
    store.put("here/" + std::to_string(rank), "yes");
    store.gather("here/", size, std::chrono::seconds(60));
    return make_group(store, setup);
  }
};

// Returns "WHAT/RANK": the key under which a rank puts what it reports.
std::string rank_key(const char* what, int rank);

// Runs every collective with `count` elements, and the all-reduce in a window, too. All ranks call it.
// Errors: Error that names the first collective whose result is not the naive result.
void check_collectives(Group& group, size_t count);
// Sends short and long messages around a ring. All ranks send before they receive. Errors: as in
// check_collectives().
void check_messages(Group& group);
// Starts collectives and messages, the receives first, and waits for them at the end. Errors: as in
// check_collectives().
void check_started(Group& group);

// Runs all-reduces until one fails. After a few, the rank puts "yes" under rank_key("ready", rank). At the
// end it puts "timeout" or "comm", the culprit and the message under rank_key("fault", rank).
void run_until_fault(Group& group, Store& store);

}  // namespace starling
