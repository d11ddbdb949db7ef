// LinkShape: when bytes leave and arrive on a link that is slower than the real one. Pure arithmetic on times that the caller
// gives, so that it is tested with made-up ones.
//
//   rate      a byte of a message takes (kFrameBytes / kTcpSegmentBytes) · 8 / bits_per_s seconds of the sender's link: Ethernet
//             carries 1448 bytes of a TCP stream in frames of 1514, as `tc tbf` counts them. All connections of a sender
//             share its link. A link that has waited for its sender gives no credit for that; one that was late itself makes up
//             for it, 20 ms at most. So it is for what a host receives from several senders at once.
//   latency   then it is under way for latency_s
//   loss      each segment is lost with probability `loss`; it comes a round trip later, and everything behind it waits, as TCP's
//             fast retransmit has it. TCP would also slow down: the rate of a connection is held to
//             sqrt(3/2) · kTcpSegmentBytes / (round trip · sqrt(loss)) where there is latency
//             (Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm, 1997).
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/base/clock.h"

namespace starling {

struct LinkLimits {
  double bits_per_s = 0;  // 0: as fast as the real one
  double latency_s = 0;   // one way, added to the real one
  double loss = 0;        // of segments, share of 1
  bool any() const { return bits_per_s > 0 || latency_s > 0 || loss > 0; }
};

constexpr double kTcpSegmentBytes = 1448;
constexpr double kFrameBytes = 1514;

// What a host's connections share, one for each way. One thread.
class TokenBucket {
 public:
  // bytes_per_s of message bytes, 0: no limit.
  explicit TokenBucket(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // The earliest time at which the next bytes may leave.
  Nanoseconds ready_at() const;
  // Lets `bytes` leave at `now` >= ready_at(); the time at which the last of them has left.
  Nanoseconds spend(Nanoseconds now, size_t bytes);
  // Nothing waits to leave.
  void idle() { idle_ = true; }

 private:
  const double bytes_per_s_;
  Nanoseconds free_at_{0};  // when all that was let go has left; may lie behind `now`
  bool idle_ = true;
};

// Message bytes a second of the sender's link; 0: no limit.
double link_bytes_per_s(const LinkLimits& limits);
// Of one connection, for the loss that TCP sees; 0: no limit.
double connection_bytes_per_s(const LinkLimits& limits);
// Bytes to let go at once: a millisecond's worth, one segment at least, 64 KiB at most.
size_t chunk_bytes(const LinkLimits& limits);

// One direction of one connection.
class DelayLine {
 public:
  DelayLine(const LinkLimits& limits, uint64_t seed);
  // When `bytes`, of which the last has left at `left`, arrive; never before what went ahead of them.
  Nanoseconds arrival(Nanoseconds left, size_t bytes);

 private:
  const LinkLimits limits_;
  uint64_t state_;
  Nanoseconds last_{0};
};

}  // namespace starling
