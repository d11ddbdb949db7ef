// RemoteTeam: some of the connected ranks, in an order. It may be all ranks of a group, or one leader per
// host.
//
// The collectives between hosts run on it. A rank's position in the team is counted from 0.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "starling/comm/network/remote_peers.h"

namespace starling {

// MoveTrace records what one rank has moved, step by step, for tests (collective/algorithms_test.cc).
struct MoveTrace {
  // Message is one message that the rank has sent or received.
  struct Message {
    int peer;      // position in the team
    size_t bytes;  // of its payload
  };
  // Step is one move().
  struct Step {
    std::vector<Message> sent;      // in the order in which they were queued
    std::vector<Message> received;  // in the order in which they were queued
  };
  std::vector<Step> steps;  // in their order
};

// RemoteTeam queues the messages of one step of an algorithm and moves them.
class RemoteTeam {
 public:
  // `ranks` are ranks of the group. `me` is this rank's position in `ranks`.
  RemoteTeam(RemotePeers& peers, std::vector<int> ranks, int me)
      : peers_(peers), ranks_(std::move(ranks)), me_(me) {}

  // This rank's position.
  int me() const { return me_; }
  // The number of ranks in the team.
  int size() const { return static_cast<int>(ranks_.size()); }
  // The position `offset` places after this rank, modulo size(). `offset` may be negative.
  int position(int offset) const { return ((me_ + offset) % size() + size()) % size(); }

  // Queues a message to position `to`. The memory must stay valid until move() returns.
  void send(int to, const void* data, size_t bytes) {
    if (trace_ != nullptr) step_.sent.push_back({to, bytes});
    sends_.push_back({ranks_[to], {static_cast<const std::byte*>(data), bytes}});
  }
  // Queues the receipt of a message from position `from`.
  void recv(int from, void* data, size_t bytes) {
    if (trace_ != nullptr) step_.received.push_back({from, bytes});
    receives_.push_back({ranks_[from], {static_cast<std::byte*>(data), bytes}});
  }
  // Queues an announcement to position `to`: a block of `bytes` bytes will follow. `bytes` must stay valid
  // until move() returns.
  void announce(int to, const uint64_t& bytes) {
    if (trace_ != nullptr) step_.sent.push_back({to, 0});
    sends_.push_back({ranks_[to], std::as_bytes(std::span(&bytes, 1)), true});
  }
  // Queues the receipt of an announcement from position `from`.
  void expect_announcement(int from, uint64_t& bytes) {
    if (trace_ != nullptr) step_.received.push_back({from, 0});
    receives_.push_back({ranks_[from], std::as_writable_bytes(std::span(&bytes, 1)), true});
  }
  // Returns whether messages are queued.
  bool has_queued() const { return !sends_.empty() || !receives_.empty(); }
  // Moves all queued messages: one step of an algorithm.
  void move() {
    if (trace_ != nullptr) trace_->steps.push_back(std::exchange(step_, {}));
    const auto sends = std::exchange(sends_, {});
    const auto receives = std::exchange(receives_, {});
    peers_.move(sends, receives);
  }
  // Like move(), but calls arrived(i) when receive i completes. Sends that arrived() queues join this move.
  void move(const std::function<void(size_t)>& arrived) {
    const auto sends = std::exchange(sends_, {});
    const auto receives = std::exchange(receives_, {});
    peers_.move(sends, receives, [&](size_t i) {
      arrived(i);
      return std::exchange(sends_, {});
    });
    if (trace_ != nullptr) trace_->steps.push_back(std::exchange(step_, {}));
  }
  // Records all following steps in *trace. Null ends the recording.
  void record(MoveTrace* trace) { trace_ = trace; }
  // Returns memory of at least `bytes` that is kept between collectives. Its contents are undefined.
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
