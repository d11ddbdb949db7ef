#include "starling/commands/progress_lines.h"

#include <gtest/gtest.h>

#include <vector>

namespace starling {
namespace {

class SetClock final : public Clock {
 public:
  Nanoseconds now() const override { return time; }
  Nanoseconds time{};
};

// Returns the parts with a line, of a loop whose parts take `each`.
std::vector<int64_t> parts_with_lines(int64_t first, int64_t parts, Nanoseconds each, bool all = false) {
  SetClock clock;
  ProgressLines lines(clock, parts, all);
  std::vector<int64_t> shown;
  for (int64_t part = first; part <= parts; ++part) {
    clock.time += each;
    if (lines.is_due(part)) shown.push_back(part);
  }
  return shown;
}

TEST(ProgressLines, ALoopOfAnyLengthHasAboutTwentyLines) {
  using std::chrono::milliseconds;
  EXPECT_EQ(parts_with_lines(1, 4, milliseconds(1)), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(parts_with_lines(1, 20, milliseconds(1)).size(), 20u);
  EXPECT_EQ(parts_with_lines(1, 100, milliseconds(1)).size(), 21u);
  EXPECT_EQ(parts_with_lines(1, 9999, milliseconds(1)).size(), 21u);
  EXPECT_EQ(parts_with_lines(1, 9999, milliseconds(1)).back(), 9999);
  EXPECT_EQ(parts_with_lines(98, 100, milliseconds(1)), (std::vector<int64_t>{98, 100}));  // a resumed run
  EXPECT_EQ(parts_with_lines(1, 100, milliseconds(1), /*all=*/true).size(), 100u);
}

TEST(ProgressLines, ASlowLoopIsNotSilentForLong) {
  EXPECT_EQ(parts_with_lines(1, 1000, std::chrono::seconds(6)).size(), 501u);  // every second part
}

TEST(ProgressLines, ALineWithNewsIsPrinted) {
  const SetClock clock;
  ProgressLines lines(clock, 1000, false);
  EXPECT_TRUE(lines.is_due(1));
  EXPECT_FALSE(lines.is_due(2));
  EXPECT_TRUE(lines.is_due(3, /*wanted=*/true));
}

}  // namespace
}  // namespace starling
