#include "starling/net/emulation/link_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/keyed_random.h"

namespace starling {
namespace {

constexpr Nanoseconds kMostLate = std::chrono::milliseconds(20);

Nanoseconds from_seconds(double seconds) {
  return Nanoseconds(static_cast<int64_t>(std::llround(seconds * 1e9)));
}

// Returns the next random number in [0, 1).
double next_uniform(uint64_t& state) {
  return uniform_of(mix64(state += kGolden));
}

}  // namespace

Nanoseconds TokenBucket::ready_at() const {
  return free_at_;
}

Nanoseconds TokenBucket::spend(Nanoseconds now, size_t bytes) {
  if (bytes_per_s_ <= 0) return now;
  const Nanoseconds start = std::exchange(idle_, false) ? now : now - kMostLate;
  free_at_ = std::max(free_at_, start) + from_seconds(static_cast<double>(bytes) / bytes_per_s_);
  return free_at_;
}

double link_bytes_per_s(const LinkLimits& limits) {
  return limits.bits_per_s / 8 * kTcpSegmentBytes / kFrameBytes;
}

double connection_bytes_per_s(const LinkLimits& limits) {
  if (limits.loss <= 0 || limits.latency_s <= 0) return 0;
  return std::sqrt(1.5) * kTcpSegmentBytes / (2 * limits.latency_s * std::sqrt(limits.loss));
}

size_t chunk_bytes(const LinkLimits& limits) {
  const double link = link_bytes_per_s(limits), connection = connection_bytes_per_s(limits);
  const double rate = link > 0 && connection > 0 ? std::min(link, connection) : std::max(link, connection);
  if (rate <= 0) return 64 * 1024;
  return static_cast<size_t>(std::clamp(rate * 1e-3, kTcpSegmentBytes, 65536.0));
}

DelayLine::DelayLine(const LinkLimits& limits, uint64_t seed) : limits_(limits), state_(seed) {}

Nanoseconds DelayLine::arrival(Nanoseconds left, size_t bytes) {
  Nanoseconds due = left + from_seconds(limits_.latency_s);
  if (limits_.loss > 0) {
    // One random number decides whether at least one of the segments is lost.
    const double segments = std::ceil(static_cast<double>(bytes) / kTcpSegmentBytes);
    if (next_uniform(state_) < 1 - std::pow(1 - limits_.loss, segments))
      due += from_seconds(2 * limits_.latency_s);
  }
  last_ = std::max(last_, due);
  return last_;
}

}  // namespace starling
