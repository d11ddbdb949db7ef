// RemotePeers: the connections of this rank to the ranks that it does not share memory with, as collectives use them:
// messages that carry their Operation, moved many at a time, with errors that name who is late, dead or elsewhere.
//
// Besides collective messages the connections carry three kinds of notice: a failure (its reason ends the others'
// waits), "I wait for rank r" (sent when a wait has run out of time, so that the rank that all wait for is found and not
// one that waits itself), and a farewell.
// Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/comm/failure_notes.h"
#include "starling/comm/liveness.h"
#include "starling/comm/operation.h"
#include "starling/net/endpoint.h"

namespace starling {

struct RemoteSend {
  int rank;
  ConstBytes bytes;
};
struct RemoteReceive {
  int rank;
  Bytes bytes;
};

struct RemoteSetup {
  int rank = 0;
  std::vector<std::string> host_names;               // of each rank, for messages
  std::vector<std::unique_ptr<Endpoint>> endpoints;  // by rank; null for ranks of this host and itself
  std::chrono::milliseconds timeout{60'000};
  // Trouble that shows elsewhere: polled while waiting.
  std::function<std::optional<Failure>()> outside;
  std::function<void(const std::string&)> warn;   // GroupOptions
  std::shared_ptr<FailureNotes> notes = nullptr;  // may be null
};

class RemotePeers {
 public:
  explicit RemotePeers(RemoteSetup setup);
  ~RemotePeers();  // leave(), and the end of the connections
  // Says farewell, or what the failure was. The connections, for end_all(); nothing but the destructor may follow.
  std::vector<Endpoint*> leave();

  // The operation that the following messages belong to.
  void begin(const Operation& operation) { operation_ = operation; }
  // Told that receives[i] has arrived, while others are under way; what it returns is sent next, in the same move.
  using Arrived = std::function<std::vector<RemoteSend>(size_t i)>;
  // Moves all messages at the same time; those to one rank, and those from one rank, in the order given. Sizes must agree. On a
  // fault all peers are told and the error is thrown. With `arrived` the timeout begins anew with each message that arrives.
  void move(std::span<const RemoteSend> sends, std::span<const RemoteReceive> receives,
            const Arrived& arrived = {});
  // Tells all peers, once. Does not throw.
  void announce(const Failure& failure);

  uint64_t sent() const;
  uint64_t received() const;
  std::string name(int rank) const;

 private:
  struct Flow;
  static Flow sending(const RemoteSend& send);
  enum Tag : uint32_t { kCollective = 1, kFailure, kWaiting, kFarewell };

  [[noreturn]] void fail(const Failure& failure);
  bool advance(std::deque<Flow>& flows, const Arrived& arrived);
  bool advance_send(Flow& flow);
  bool advance_receive(Flow& flow);
  void check_head(const Flow& flow);
  void wait_for_any(std::deque<Flow>& flows);
  // After a fault: the callers' memory is theirs again.
  void cancel(const std::deque<Flow>& flows);
  // Looks for notices and broken connections on connections that no message is arriving on.
  void look_around(const std::deque<Flow>& flows);
  void check_patience(const std::deque<Flow>& flows, Deadline deadline);
  void take_notice(int rank, const MessageInfo& info);
  std::vector<std::byte> take_message(int rank, const MessageInfo& info);
  [[noreturn]] void report_other_collective(int rank, const MessageInfo& info);
  void notify_all(Tag tag, const std::string& text);
  // Ends the connections on which a message is half sent: their peers cannot get another one.
  void end_half_sent();
  // Follows who waits for whom, from `rank`, to the rank that has not said that it waits.
  int last_in_chain(int rank) const;

  const RemoteSetup setup_;
  Operation operation_;
  std::vector<std::optional<int>> waits_for_;  // what each rank has said
  std::vector<bool> sending_;                  // a message to this rank is half sent
  std::vector<bool> receiving_;
  std::vector<bool> left_;
  std::array<std::vector<uint64_t>, 2>
      blocked_;            // receiving, sending: the pass in which a rank's turn was taken
  bool arriving_ = false;  // a message that somebody is told of has arrived
  uint64_t pass_ = 0;
  int awaited_ = -1;
  bool said_waiting_ = false;
  bool warned_ = false;
  bool announced_ = false;
  bool has_left_ = false;
};

}  // namespace starling
