// Meetings lets ranks that make their steps at different times stop after one common step, and wait for each
// other without a limit of time.
//
// A collective of a group ends with a TimeoutError if a rank comes later than the timeout. In an asynchronous
// exchange a slow rank may come much later without a fault. The ranks therefore meet by messages before they
// begin a collective. Rank 0 answers all other ranks:
//
//   meeting   rank → 0: kArrived; when all ranks have arrived, 0 → rank: kGo
//   stopping  a rank that asks all ranks to stop → 0: kAsk
//             0 → rank: kHalt; rank → 0: kStep, the first step after which the rank can still stop
//             0 → rank: kStopAt, the largest of these steps
//
// From kHalt to kStopAt a rank begins no step, so no rank passes the step at which all of them stop.
//
// The class is pure logic: it has no threads, no clock and no connections. The caller sends take_outgoing(),
// passes on what arrives, and does so until may_go_on(). meetings_test.cc explores all interleavings.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace starling {

// What a message says.
enum class MeetingKind : int64_t { kAsk = 1, kHalt, kStep, kStopAt, kArrived, kGo };

// One message. Messages from one rank to another must arrive in the order in which they were sent.
struct MeetingMessage {
  MeetingKind kind = MeetingKind::kAsk;
  int64_t step = 0;  // of kAsk, kStep and kStopAt
  // Compares all fields.
  auto operator<=>(const MeetingMessage&) const = default;
};

// One rank's side. A value that may be copied. Not thread-safe.
class Meetings {
 public:
  // A message to be sent.
  struct Outgoing {
    int to = 0;              // a rank
    MeetingMessage message;  // for this rank
    // Compares all fields.
    auto operator<=>(const Outgoing&) const = default;
  };

  // `rank` is one of `size` ranks.
  Meetings(int rank, int size);

  // This rank has finished the update of `step`. Steps ascend. `asks`: the rank asks all ranks to stop.
  void finish_step(int64_t step, bool asks);
  // This rank waits for all ranks after `step`, which it has finished. may_go_on() is true again when all
  // ranks have called arrive() as often as this rank.
  void arrive(int64_t step);
  // A message from rank `from` has arrived.
  void receive(int from, const MeetingMessage& message);
  // Returns the messages that the caller must send now, and forgets them.
  std::vector<Outgoing> take_outgoing();
  // Returns true if there are messages to be sent.
  bool has_outgoing() const { return !outgoing_.empty(); }
  // Returns false while this rank must wait for messages and must not begin a step.
  bool may_go_on() const { return !halted_ && !waits_; }
  // Returns true if all ranks stop after `step`, which this rank has finished. Valid if may_go_on().
  bool stops_after(int64_t step) const { return step == stop_at_; }

  // Compares all state.
  auto operator<=>(const Meetings&) const = default;
  // Returns all state as text. Equal states have equal texts. For tests.
  std::string state() const;

 private:
  void tell_all(MeetingKind kind, int64_t step);
  void halt_all();
  void take_step(int64_t step);
  void count_arrival();

  int rank_;
  int size_;
  int64_t next_ = 1;      // the first step after which this rank can still stop
  int64_t stop_at_ = -1;  // the last step that was agreed on
  bool halted_ = false;   // between kHalt and kStopAt; on rank 0 while answers are missing
  bool waits_ = false;    // between arrive() and kGo
  bool asked_ = false;    // this rank has sent kAsk, which is not answered
  // Of rank 0:
  int arrived_ = 0;     // ranks that wait in the present meeting
  int answers_ = 0;     // ranks that have answered kHalt
  int64_t latest_ = 0;  // the largest step of these answers
  std::vector<Outgoing> outgoing_;
};

}  // namespace starling
