// RemoteTeam: some of the ranks that are connected, in an order: all of a group, or one leader a host. What the TCP
// collectives run on; positions in the team are counted from 0.
#pragma once

#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "starling/comm/remote_peers.h"

namespace starling {

// What one rank has moved, step by step; for counting (cost_test.cc).
struct MoveTrace {
  struct Message {
    int peer;  // position in the team
    size_t bytes;
  };
  struct Step {
    std::vector<Message> sent;
    std::vector<Message> received;
  };
  std::vector<Step> steps;
};

class RemoteTeam {
 public:
  // me: this rank's position in `ranks` (global).
  RemoteTeam(RemotePeers& peers, std::vector<int> ranks, int me)
      : peers_(peers), ranks_(std::move(ranks)), me_(me) {}

  int me() const { return me_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int position(int offset) const { return ((me_ + offset) % size() + size()) % size(); }

  // Queues, then moves all that is queued: one step of an algorithm.
  void send(int to, const void* data, size_t bytes) {
    if (trace_ != nullptr) step_.sent.push_back({to, bytes});
    sends_.push_back({ranks_[to], {static_cast<const std::byte*>(data), bytes}});
  }
  void recv(int from, void* data, size_t bytes) {
    if (trace_ != nullptr) step_.received.push_back({from, bytes});
    receives_.push_back({ranks_[from], {static_cast<std::byte*>(data), bytes}});
  }
  void move() {
    if (trace_ != nullptr) trace_->steps.push_back(std::exchange(step_, {}));
    const auto sends = std::exchange(sends_, {});
    const auto receives = std::exchange(receives_, {});
    peers_.move(sends, receives);
  }
  // The same, but that who receives is told: arrived(i) when the i-th of the receives that were queued is here, while the others
  // are under way. What it queues to be sent goes with them.
  void move(const std::function<void(size_t)>& arrived) {
    const auto sends = std::exchange(sends_, {});
    const auto receives = std::exchange(receives_, {});
    peers_.move(sends, receives, [&](size_t i) {
      arrived(i);
      return std::exchange(sends_, {});
    });
    if (trace_ != nullptr) trace_->steps.push_back(std::exchange(step_, {}));
  }
  // From now on steps are recorded there; null: no more.
  void record(MoveTrace* trace) { trace_ = trace; }
  // Memory that is kept between collectives.
  std::byte* scratch(size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }

 private:
  RemotePeers& peers_;
  const std::vector<int> ranks_;
  const int me_;
  std::vector<RemoteSend> sends_;
  std::vector<RemoteReceive> receives_;
  std::vector<std::byte> scratch_;
  MoveTrace* trace_ = nullptr;
  MoveTrace::Step step_;
};

}  // namespace starling
