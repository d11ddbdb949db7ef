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

TEST(Emulation, RefusesOtherWords) {
  for (const char* text :
       {"slow", "slow-rank=1", "slow-rank=-1:2x", "slow-rank=1:0.5x", "jitter=4x", "jitter=4x@0%",
        "jitter=4x@200%", "slow-rank=1:2x;jitter=4x@10%", "jitter=4x@10%%"})
    EXPECT_THROW(parse_emulation(text), ConfigError) << text;
}

}  // namespace
}  // namespace starling
