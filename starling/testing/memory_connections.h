// MemoryConnections: connects the ranks of a test, which are threads, in memory instead of over TCP. It is
// for GroupSetup::connect.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "starling/comm/network/peer_connections.h"
#include "starling/net/memory/memory_endpoint.h"

namespace starling {

// MemoryConnections makes both ends of a connection when the first of the two ranks asks. It is thread-safe
// and must outlive connect() of all ranks.
class MemoryConnections {
 public:
  // Returns the connections of one rank.
  PeerConnections connect(const ConnectionSetup& setup) {
    PeerConnections connections;
    for (int r = 0; r < static_cast<int>(setup.remote.size()); ++r) {
      const bool remote = setup.remote[static_cast<size_t>(r)];
      connections.collectives.push_back(remote ? take(setup, r, 0) : nullptr);
      connections.messages.push_back(remote ? take(setup, r, 1) : nullptr);
    }
    return connections;
  }

 private:
  std::unique_ptr<Endpoint> take(const ConnectionSetup& setup, int peer, int purpose) {
    const std::lock_guard lock(mutex_);
    const auto key = std::make_tuple(std::min(setup.rank, peer), std::max(setup.rank, peer), purpose);
    if (!pairs_.contains(key)) pairs_[key] = make_memory_endpoints();
    auto& pair = pairs_[key];
    auto end = std::move(setup.rank < peer ? pair.first : pair.second);
    end->set_peer_rank(peer, setup.host_names[static_cast<size_t>(peer)]);
    return end;
  }
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>>> pairs_;
};

}  // namespace starling
