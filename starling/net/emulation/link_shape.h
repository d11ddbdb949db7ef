// The timing of an emulated link: when bytes leave and arrive on a link that is slower than the real one. The
// functions are pure arithmetic on times that the caller gives, so tests use invented times.
//
// Rate: a byte of a message occupies the sender's link for (kFrameBytes / kTcpSegmentBytes) · 8 / bits_per_s
// seconds. Ethernet carries 1448 bytes of a TCP stream in a frame of 1514 bytes, and `tc tbf` counts frames.
// All connections of a sender share its link. A link that has waited for its sender gets no credit. A link
// that was itself late makes up for at most 20 ms. The rate also limits what a host receives from several
// senders at the same time.
//
// Latency: a byte arrives latency_s after it has left.
//
// Loss: each segment is lost with probability `loss`. A chunk with a lost segment arrives a round trip (2 ·
// latency_s) later, and everything behind it waits, as with TCP's fast retransmit. TCP would also slow down.
// If there is latency, a connection is therefore at most as fast as this.
//
//   sqrt(3/2) · kTcpSegmentBytes / (round trip · sqrt(loss))
//
// Source: Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm,
// 1997.
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/base/clock.h"

namespace starling {

// LinkLimits describes the link.
struct LinkLimits {
  double bits_per_s = 0;  // 0: as fast as the real link
  double latency_s = 0;   // one way, in addition to the real latency
  double loss = 0;        // the fraction of segments that are lost
  // Whether the link differs from the real one.
  bool any() const { return bits_per_s > 0 || latency_s > 0 || loss > 0; }
};

constexpr double kTcpSegmentBytes = 1448;
constexpr double kFrameBytes = 1514;

// TokenBucket limits a rate: that of one direction of a host's link, which all connections share, or that of
// one connection. One thread at a time may use it.
class TokenBucket {
 public:
  // The rate is in message bytes per second; 0: no limit.
  explicit TokenBucket(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // Returns the earliest time at which the next bytes may leave.
  Nanoseconds ready_at() const;
  // Lets `bytes` leave at `now` >= ready_at(). Returns the time at which the last of them has left.
  Nanoseconds spend(Nanoseconds now, size_t bytes);
  // Says that nothing waits to leave. The unused time then gives no credit.
  void idle() { idle_ = true; }

 private:
  const double bytes_per_s_;
  Nanoseconds free_at_{0};  // when everything that was let go has left; it may be before `now`
  bool idle_ = true;
};

// Returns the rate of the sender's link in message bytes per second; 0: no limit.
double link_bytes_per_s(const LinkLimits& limits);
// Returns the rate of one connection under the loss that TCP sees, in bytes per second; 0: no limit.
double connection_bytes_per_s(const LinkLimits& limits);
// Returns the size of a chunk, which leaves as one piece: the bytes of a millisecond, at least one segment
// and at most 64 KiB.
size_t chunk_bytes(const LinkLimits& limits);

// DelayLine is one direction of one connection.
class DelayLine {
 public:
  // `seed` determines which segments are lost.
  DelayLine(const LinkLimits& limits, uint64_t seed);
  // Returns when a chunk of `bytes` arrives, the last byte of which has left at `left`. A chunk never arrives
  // before earlier ones.
  Nanoseconds arrival(Nanoseconds left, size_t bytes);

 private:
  const LinkLimits limits_;
  uint64_t state_;
  Nanoseconds last_{0};
};

}  // namespace starling
