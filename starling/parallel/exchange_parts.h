// ExchangeParts holds what an exchange is made of. Each exchange (a row of spec/exchanges.inc) has a maker,
// which takes these parts and returns the strategy. The maker is defined in the file of the algorithm.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/parameter_server.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/strategy.h"
#include "starling/server/server_rendezvous.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Receives a rank's finished gradients of a bucket before any rank reads them. Tests damage them in this
// callback.
using OnBucket = std::function<void(int64_t step, size_t bucket, void* data, size_t bytes)>;

// How a worker reaches the parameter servers.
struct ServerAccess {
  Store* store = nullptr;       // null: the run has no server processes
  ServerRendezvous rendezvous;  // equal on all workers and servers
  int worker = 0;               // the number of this worker
  bool loads = true;            // whether this worker's initial parameters become those of the servers
  Group* team = nullptr;        // the ranks of this worker's team (server_team.h); null: it is alone
};

// The parts of one exchange. The references must outlive the strategy, except that of the factory, which is
// valid while the maker runs.
struct ExchangeParts {
  const RunSpec& spec;          // the configuration of the run
  const ModelFactory& factory;  // makes the model, or the part of a model, that the exchange trains
  Group& group;                 // the ranks that hold a replica of this model or part
  const Clock& clock;           // measures the phases of a step
  FlatReplicaOptions replica;   // how the replica keeps its parameters
  bool part = false;            // The factory makes a part of a model (a stage, or a slice of each layer).
  int64_t total_steps = 0;      // of the whole run
  ServerAccess servers = {};    // of exchanges with servers
  std::vector<ServerKey> keys = {};  // the parameters of the whole model, if `part`
  OnBucket on_bucket = {};           // tests only
  Batch held_out = {};               // this rank's samples on which no rank trains; empty: there are none
};

}  // namespace starling
