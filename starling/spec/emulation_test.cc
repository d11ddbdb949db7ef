#include "starling/spec/emulation.h"

#include <gtest/gtest.h>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(Emulation, ReadsSlowRanksAndJitter) {
  EXPECT_FALSE(parse_emulation("").any());
  const Emulation e = parse_emulation("slow-rank=1:2x,slow-rank=3:1.5x,jitter=4x@10%");
  ASSERT_EQ(e.slow_ranks.size(), 2u);
  EXPECT_EQ(e.slow_ranks[1].rank, 3);
  EXPECT_DOUBLE_EQ(e.slow_ranks[1].factor, 1.5);
  EXPECT_DOUBLE_EQ(e.jitter_factor, 4);
  EXPECT_DOUBLE_EQ(e.jitter_share, 0.1);
}

TEST(Emulation, ReadsLinks) {
  const Emulation e = parse_emulation("bandwidth=1gbit,latency=5ms,loss=0.1%");
  EXPECT_TRUE(e.shapes_links());
  EXPECT_FALSE(e.any());
  EXPECT_DOUBLE_EQ(e.bandwidth, 1e9);
  EXPECT_DOUBLE_EQ(e.latency_s, 5e-3);
  EXPECT_DOUBLE_EQ(e.loss, 1e-3);
  EXPECT_DOUBLE_EQ(parse_emulation("bandwidth=2.5mbit").bandwidth, 2.5e6);
  EXPECT_DOUBLE_EQ(parse_emulation("bandwidth=64kbit").bandwidth, 64e3);
  EXPECT_DOUBLE_EQ(parse_emulation("latency=80us").latency_s, 80e-6);
  EXPECT_DOUBLE_EQ(parse_emulation("latency=0.1s").latency_s, 0.1);
  EXPECT_TRUE(parse_emulation("jitter=4x@10%,loss=1%").any());
}

TEST(Emulation, ReadsTheTimeOfComputation) {
  EXPECT_DOUBLE_EQ(parse_emulation("compute=20ms").compute_s, 0.02);
  EXPECT_DOUBLE_EQ(parse_emulation("jitter=4x@10%,compute=500us").compute_s, 0.0005);
  EXPECT_DOUBLE_EQ(parse_emulation("compute=1.5s").compute_s, 1.5);
  EXPECT_TRUE(parse_emulation("compute=1s").any());
}

TEST(Emulation, RefusesOtherWords) {
  for (const char* text : {"bandwidth=1",
                           "bandwidth=1Gb",
                           "bandwidth=-1gbit",
                           "bandwidth=0mbit",
                           "latency=5",
                           "latency=5min",
                           "loss=1",
                           "loss=100%",
                           "loss=nan%",
                           "bandwith=1gbit",
                           "latency=",
                           "=5ms",
                           "slow",
                           "slow-rank=1",
                           "slow-rank=-1:2x",
                           "slow-rank=1:0.5x",
                           "jitter=4x",
                           "jitter=4x@0%",
                           "jitter=4x@200%",
                           "slow-rank=1:2x;jitter=4x@10%",
                           "slow-rank=1:infx",
                           "jitter=nanx@5%",
                           "jitter=4x@10%%",
                           "compute=20",
                           "compute=0ms",
                           "compute=5min"})
    EXPECT_THROW(parse_emulation(text), ConfigError) << text;
}

}  // namespace
}  // namespace starling
