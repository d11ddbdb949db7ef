// MemoryMesh: connects the ranks of a test, which are threads, in memory instead of over TCP; for GroupSetup::connect.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "starling/comm/mesh.h"
#include "starling/net/memory/endpoint.h"

namespace starling {

// The lower rank of a pair makes both ends. Any thread; outlives connect() of all ranks.
class MemoryMesh {
 public:
  Mesh connect(const MeshSetup& setup) {
    Mesh mesh;
    for (int r = 0; r < static_cast<int>(setup.remote.size()); ++r) {
      const bool remote = setup.remote[static_cast<size_t>(r)];
      mesh.collectives.push_back(remote ? take(setup, r, 0) : nullptr);
      mesh.mail.push_back(remote ? take(setup, r, 1) : nullptr);
    }
    return mesh;
  }

 private:
  std::unique_ptr<Endpoint> take(const MeshSetup& setup, int peer, int purpose) {
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
