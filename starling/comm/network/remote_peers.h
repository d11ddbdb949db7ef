// RemotePeers: the connections of this rank to the ranks with which it does not share memory, for
// collectives.
//
// Messages carry their Operation. Several messages move at the same time. Errors name the rank that is late,
// dead or in another collective. The connections also carry three kinds of notice:
//   failure: its reason ends the waits of the other ranks
//   waiting: "I wait for rank r", sent when a wait has run out of time. A rank follows these notices to find
//   the rank for which all ranks wait.
//   farewell: this rank leaves
// Threads: only one thread at a time may use it.
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

#include "starling/comm/host/liveness.h"
#include "starling/comm/network/failure_notes.h"
#include "starling/comm/operation.h"
#include "starling/net/endpoint.h"

namespace starling {

// RemoteSend is a message to a rank. Its memory must stay valid until the move ends.
struct RemoteSend {
  int rank;
  ConstBytes bytes;
  // The message is an announcement: its bytes are a uint64_t, the length of a block that will follow. It is
  // no tensor, so sent() does not count it, and no block can be taken for it.
  bool announces = false;
};
// RemoteReceive is the memory for a message from a rank.
struct RemoteReceive {
  int rank;
  Bytes bytes;
  bool announces = false;  // as above
};

// RemoteSetup is what RemotePeers and RemoteMessages are made of.
struct RemoteSetup {
  int rank = 0;
  std::vector<std::string> host_names;               // of each rank, for messages
  std::vector<std::unique_ptr<Endpoint>> endpoints;  // by rank; null for this rank and for ranks of this host
  std::chrono::milliseconds timeout{60'000};
  // Returns a fault that shows elsewhere (shared memory, the store). It is called about every 20 ms of a
  // wait.
  std::function<std::optional<Failure>()> outside;
  std::function<void(const std::string&)> warn;   // GroupOptions::warn
  std::shared_ptr<FailureNotes> notes = nullptr;  // may be null
  uint64_t inbox_bytes = 0;                       // GroupOptions::inbox_bytes
};

// RemotePeers moves the messages of collectives.
class RemotePeers {
 public:
  // Takes over the connections.
  explicit RemotePeers(RemoteSetup setup);
  ~RemotePeers();  // calls leave() and ends the connections, unless leave() was called before
  // Sends a farewell, unless a failure has been announced, and returns the connections for end_all().
  // Afterwards only the destructor may be called.
  std::vector<Endpoint*> leave();

  // Sets the operation to which the following messages belong.
  void begin(const Operation& operation) { operation_ = operation; }
  // Called when receives[i] has arrived, while other messages are under way. The messages that it returns
  // join this move.
  using Arrived = std::function<std::vector<RemoteSend>(size_t i)>;
  // Moves all messages at the same time. Returns when all receives have arrived and the memory of all sends
  // may change. Messages between two ranks keep their order. Sender and receiver must agree on the sizes.
  // With `arrived`, the timeout begins anew after each message that arrives.
  // Errors: TimeoutError that names the late rank; CommError. All peers are told of the failure before.
  void move(std::span<const RemoteSend> sends, std::span<const RemoteReceive> receives,
            const Arrived& arrived = {});
  // Tells all peers about a failure. Only the first call has an effect. It does not throw.
  void announce(const Failure& failure);

  // The bytes of the tensors of all messages that were sent completely, without heads and frame headers.
  uint64_t sent() const;
  // The bytes of the tensors of all messages that were received completely, counted likewise.
  uint64_t received() const;
  // The name of a rank for messages: "rank 2 (node-b)".
  std::string name(int rank) const;

 private:
  struct Flow;
  static Flow sending(const RemoteSend& send);
  enum Tag : uint32_t { kCollective = 1, kFailure, kWaiting, kFarewell, kAnnouncement };

  static bool is_notice(uint32_t tag) { return tag != kCollective && tag != kAnnouncement; }

  [[noreturn]] void fail(const Failure& failure);
  bool advance(std::deque<Flow>& flows, const Arrived& arrived);
  bool advance_send(Flow& flow);
  bool advance_receive(Flow& flow);
  void check_head(const Flow& flow);
  void wait_for_any(std::deque<Flow>& flows);
  // After a fault: cancels unfinished messages, so that their memory belongs to the callers again.
  void cancel(const std::deque<Flow>& flows);
  // Looks for notices and broken connections on the connections on which no message is arriving.
  void look_around();
  void check_hosts(const std::deque<Flow>& flows);
  // Ends the watch over the hosts that check_hosts() has begun.
  void rest();
  void check_patience(const std::deque<Flow>& flows, Deadline deadline);
  void take_notice(int rank, const MessageInfo& info);
  std::vector<std::byte> take_message(int rank, const MessageInfo& info);
  [[noreturn]] void report_other_collective(int rank, const MessageInfo& info);
  template <typename Call>
  bool tell(size_t rank, const Call& call);
  void notify_all(Tag tag, const std::string& text);
  // Ends the connections on which half a message has been sent. Their peers cannot get another message.
  void end_half_sent();
  // Returns the text of the notice that this rank waits.
  std::string waiting_text() const;
  // Follows who waits for whom, beginning at `rank`. Returns the rank that has not said that it waits.
  int last_in_chain(int rank) const;

  const RemoteSetup setup_;
  Operation operation_;
  // What a rank has said: in collective number `sequence` it waits for `rank`.
  struct Waiting {
    int rank = -1;
    uint64_t sequence = 0;
    uint64_t heard_in = 0;  // the number of the collective in which this rank heard it
  };
  std::vector<std::optional<Waiting>> waits_for_;  // by the rank that waits
  std::vector<bool> sending_;  // for each rank, whether half a message to it has been sent
  std::vector<bool> receiving_;
  std::vector<bool> left_;  // for each rank, whether it has said farewell or is gone
  std::vector<bool> mute_;  // for each rank, whether a notice to it was cut off. It gets no further notice
  // For receives and for sends: the last pass over the messages in which one of a rank's messages waited.
  std::array<std::vector<uint64_t>, 2> blocked_;
  bool arriving_ = false;  // a message has arrived, and `arrived` was called
  uint64_t pass_ = 0;
  Deadline next_check_{};     // of the peers' hosts
  std::vector<int> watched_;  // the ranks whose hosts were checked during this move
  size_t next_look_ = 0;      // the rank at which look_around() goes on
  int awaited_ = -1;
  bool said_waiting_ = false;
  bool warned_ = false;
  bool announced_ = false;
  bool has_left_ = false;
};

}  // namespace starling
