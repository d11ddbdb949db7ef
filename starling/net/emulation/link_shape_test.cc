// Tests the arithmetic of emulated links with invented times.
#include "starling/net/emulation/link_shape.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace starling {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr LinkLimits kGigabit{.bits_per_s = 1e9};

// Sends `bytes` in chunks and wakes up only every `grain`. Returns when the last byte arrives.
Nanoseconds transfer(const LinkLimits& limits, size_t bytes, Nanoseconds grain) {
  TokenBucket bucket(link_bytes_per_s(limits));
  DelayLine line(limits, 1);
  Nanoseconds now = seconds(100), arrived = now;
  bucket.spend(now - seconds(1), 1'000'000);
  bucket.idle();
  while (bytes > 0) {
    while (bytes > 0 && bucket.ready_at() <= now) {
      const size_t chunk = std::min(bytes, chunk_bytes(limits));
      arrived = line.arrival(bucket.spend(now, chunk), chunk);
      bytes -= chunk;
    }
    now += grain;
  }
  return arrived - seconds(100);
}

TEST(LinkShape, TheRateIsThatOfFramesAsTbfCountsThem) {
  EXPECT_NEAR(link_bytes_per_s(kGigabit), 125e6 * 1448 / 1514, 1);
  // 100 MB at 119.6 MB/s. Late wake-ups cost nothing, and an idle second gives no credit.
  for (const Nanoseconds grain : {Nanoseconds(microseconds(50)), Nanoseconds(milliseconds(1))}) {
    const double took = to_seconds(transfer(kGigabit, 100'000'000, grain));
    EXPECT_NEAR(took, 100e6 / link_bytes_per_s(kGigabit), 1e-4);
  }
}

TEST(LinkShape, ConnectionsShareTheLink) {
  TokenBucket bucket(1000);
  Nanoseconds now = seconds(10);
  EXPECT_EQ(bucket.spend(now, 500), now + milliseconds(500));
  EXPECT_EQ(bucket.ready_at(), now + milliseconds(500));
  EXPECT_EQ(bucket.spend(bucket.ready_at(), 250), now + milliseconds(750));
  // What was not used is lost. What was used late, by up to 20 ms, is not.
  now += seconds(60);
  bucket.idle();
  EXPECT_EQ(bucket.spend(now, 1000), now + seconds(1));
  now += milliseconds(1010);
  EXPECT_EQ(bucket.spend(now, 1000), now + milliseconds(990));
  now += seconds(3);
  EXPECT_EQ(bucket.spend(now, 1000), now + milliseconds(980));
}

TEST(LinkShape, LatencyIsAddedAndOrderKept) {
  DelayLine line({.latency_s = 5e-3}, 1);
  EXPECT_EQ(line.arrival(seconds(1), 100), seconds(1) + milliseconds(5));
  EXPECT_EQ(line.arrival(Nanoseconds(seconds(1)) - milliseconds(3), 100), seconds(1) + milliseconds(5));
}

TEST(LinkShape, WithoutLimitsNothingWaits) {
  TokenBucket bucket(link_bytes_per_s({}));
  EXPECT_EQ(bucket.spend(seconds(3), 1 << 30), seconds(3));
  EXPECT_LE(bucket.ready_at(), seconds(3));
  EXPECT_EQ(DelayLine({}, 1).arrival(seconds(3), 1 << 30), seconds(3));
}

TEST(LinkShape, LostSegmentsComeARoundTripLater) {
  const LinkLimits limits{.latency_s = 10e-3, .loss = 0.1};
  DelayLine line(limits, 7);
  int late = 0;
  constexpr int kMessages = 20'000;
  for (int i = 0; i < kMessages; ++i) {
    const Nanoseconds left = seconds(i);
    const Nanoseconds took = line.arrival(left, 1000) - left;
    ASSERT_TRUE(took == milliseconds(10) || took == milliseconds(30)) << took.count();
    late += took == milliseconds(30) ? 1 : 0;
  }
  EXPECT_NEAR(late, 0.1 * kMessages, 4 * 42);  // four standard deviations
}

TEST(LinkShape, TcpSlowsDownUnderLoss) {
  // 1448 bytes, 20 ms, 1 %: 1.22 · 1448 / (0.02 · 0.1) = 887 kB/s.
  EXPECT_NEAR(connection_bytes_per_s({.latency_s = 10e-3, .loss = 0.01}), 886.7e3, 1e3);
  EXPECT_EQ(connection_bytes_per_s({.loss = 0.01}), 0);
  EXPECT_EQ(connection_bytes_per_s(kGigabit), 0);
}

TEST(LinkShape, ChunksAreAMillisecondsWorth) {
  EXPECT_EQ(chunk_bytes({}), 64u * 1024);
  EXPECT_EQ(chunk_bytes({.bits_per_s = 1e6}), 1448u);
  EXPECT_NEAR(static_cast<double>(chunk_bytes({.bits_per_s = 100e6})), 11955, 1);
  EXPECT_EQ(chunk_bytes({.bits_per_s = 100e9}), 65536u);
}

}  // namespace
}  // namespace starling
