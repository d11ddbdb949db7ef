#include "starling/launch/message_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "starling/testing/manual_clock.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Fold : public testing::Test {
 protected:
  std::vector<std::string> taken() { return std::exchange(printed_, {}); }
  ManualClock clock_;
  std::vector<std::string> printed_;
  MessageFold fold_{clock_, [this](const std::string& line) { printed_.push_back(line); },
                    std::chrono::milliseconds(300), 3};
};

TEST_F(Fold, OneLineForAllRanksAfterTheWindow) {
  fold_.add(1, "slow disk");
  fold_.add(2, "slow disk  ");
  clock_.advance(std::chrono::milliseconds(299));
  fold_.poll();
  EXPECT_THAT(taken(), IsEmpty());
  fold_.add(3, "slow disk");
  EXPECT_EQ(fold_.deadline(), std::chrono::milliseconds(300));
  clock_.advance(std::chrono::milliseconds(1));
  fold_.poll();
  EXPECT_THAT(taken(), ElementsAre("rank 1: slow disk (2 other ranks said the same)"));
  EXPECT_FALSE(fold_.deadline().has_value());
  fold_.add(2, "slow disk");
  fold_.add(2, "slow disk");
  fold_.poll();
  EXPECT_THAT(taken(), IsEmpty());
  fold_.finish();
  EXPECT_THAT(taken(), ElementsAre("rank 1: slow disk (repeated 2 times by 3 ranks)"));
}

TEST_F(Fold, KeepsTheOrderAndIgnoresTimeStamps) {
  fold_.add(2, "z");
  fold_.add(1, "[W1121 01:02:03.456789 12 f.cc:7] Warning: a");
  fold_.add(3, "[W1121 01:02:04.999999 13 f.cc:7] Warning: a");
  fold_.add(1, "");
  fold_.finish();
  EXPECT_THAT(
      taken(),
      ElementsAre("rank 2: z",
                  "rank 1: [W1121 01:02:03.456789 12 f.cc:7] Warning: a (1 other rank said the same)"));
}

TEST_F(Fold, ForgetsWhatOnlyOneRankSaid) {
  fold_.add(1, "a");
  fold_.add(2, "a");
  fold_.add(2, "b");
  fold_.add(2, "c");
  fold_.add(1, "c");
  fold_.forget(2);
  fold_.finish();
  EXPECT_THAT(taken(), ElementsAre("rank 1: a (1 other rank said the same)",
                                   "rank 2: c (1 other rank said the same)"));
}

TEST_F(Fold, AFloodGoesToTheLogs) {
  for (const char* line : {"a", "b", "c", "d", "e"}) fold_.add(1, line);
  fold_.finish();
  EXPECT_THAT(taken(),
              ElementsAre("rank 1: a", "rank 1: b", "rank 1: c", "2 more lines are only in the logs"));
}

}  // namespace
}  // namespace starling
