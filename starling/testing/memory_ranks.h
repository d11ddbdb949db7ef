// run_on_memory: runs the ranks of a group as threads, whose connections are memory of the test's process.
#pragma once

#include <chrono>
#include <functional>

#include "starling/comm/bootstrap.h"
#include "starling/testing/memory_connections.h"
#include "starling/testing/run_ranks.h"

namespace starling {

// Calls `body` once per rank, in a thread of its own. The ranks are on one host, or each on a host of its
// own. Errors: those of run_ranks().
inline void run_on_memory(int ranks, bool one_host, const std::function<void(Group&)>& body) {
  MemoryConnections mesh;
  run_ranks(ranks, [&](const ThreadRank& at) {
    GroupSetup setup;
    setup.rank = at.rank;
    setup.size = at.size;
    setup.options.timeout = std::chrono::seconds(30);
    setup.options.shared_memory = one_host;
    setup.connect = [&mesh](const ConnectionSetup& m) { return mesh.connect(m); };
    setup.host_id = "host";
    setup.host_name = "node-a";
    const auto group = make_group(*at.store, setup);
    body(*group);
  });
}

}  // namespace starling
