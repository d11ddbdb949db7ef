#include "starling/grid/halo_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/grid/rank_grid.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

// A layer on a grid.
struct PlanCase {
  RankGrid grid;
  ImageWindows windows;
  int64_t height = 0, width = 0;
};

std::vector<PlanCase> plan_cases() {
  return {{{1, 1}, {3, 1, 1}, 5, 6},   {{1, 2}, {3, 1, 1}, 8, 8},   {{2, 2}, {5, 1, 2}, 16, 16},
          {{2, 4}, {8, 2, 0}, 32, 32}, {{3, 2}, {4, 1, 0}, 11, 13}, {{2, 4}, {9, 1, 4}, 10, 9},
          {{2, 3}, {2, 3, 0}, 17, 20}, {{4, 4}, {3, 2, 1}, 13, 15}, {{1, 5}, {7, 1, 0}, 9, 11}};
}

using Pixels = std::set<std::pair<int64_t, int64_t>>;

Pixels pixels_of_rect(const PixelRect& rect) {
  Pixels pixels;
  for (int64_t r = rect.rows.begin; r < rect.rows.end; ++r)
    for (int64_t s = rect.columns.begin; s < rect.columns.end; ++s) pixels.emplace(r, s);
  return pixels;
}

// The pixels of the image under the windows of a rank's positions, one window after another.
Pixels pixels_under_windows(const PlanCase& test, int rank) {
  const ImageWindows& w = test.windows;
  const PixelRect outputs = test.grid.part(rank, w.positions(test.height), w.positions(test.width));
  Pixels pixels;
  for (int64_t i = outputs.rows.begin; i < outputs.rows.end; ++i)
    for (int64_t j = outputs.columns.begin; j < outputs.columns.end; ++j)
      for (int64_t u = 0; u < w.size; ++u)
        for (int64_t v = 0; v < w.size; ++v) {
          const int64_t r = i * w.stride - w.padding + u, s = j * w.stride - w.padding + v;
          if (r >= 0 && r < test.height && s >= 0 && s < test.width) pixels.emplace(r, s);
        }
  return pixels;
}

TEST(HaloPlan, ARankGetsWhatItsWindowsNeedAndDoesNotHold) {
  for (const PlanCase& test : plan_cases()) {
    int64_t all = 0;
    for (int rank = 0; rank < test.grid.size(); ++rank) {
      const HaloPlan plan = halo_plan(test.grid, rank, test.windows, test.height, test.width);
      Pixels got = pixels_of_rect(common_rect(plan.own, plan.needed));
      for (const HaloPart& part : plan.receives) {
        EXPECT_EQ(common_rect(part.pixels, test.grid.part(part.peer, test.height, test.width)), part.pixels);
        for (const auto& pixel : pixels_of_rect(part.pixels))
          EXPECT_TRUE(got.insert(pixel).second) << "a pixel comes once";
        all += part.pixels.area();
      }
      const Pixels needed = pixels_under_windows(test, rank);
      // A stride above the size leaves gaps, which a rectangle includes.
      if (test.windows.stride <= test.windows.size) {
        EXPECT_EQ(got, needed);
      }
      for (const auto& pixel : needed) EXPECT_TRUE(got.contains(pixel));
    }
    EXPECT_EQ(all, halo_pixels(test.grid, test.windows, test.height, test.width));
  }
}

TEST(HaloPlan, TwoRanksAgreeOnWhatTravelsBetweenThem) {
  for (const PlanCase& test : plan_cases()) {
    std::vector<HaloPlan> plans;
    for (int rank = 0; rank < test.grid.size(); ++rank)
      plans.push_back(halo_plan(test.grid, rank, test.windows, test.height, test.width));
    const auto with = [](const std::vector<HaloPart>& parts, int peer) -> std::vector<PixelRect> {
      std::vector<PixelRect> found;
      for (const HaloPart& part : parts)
        if (part.peer == peer) found.push_back(part.pixels);
      return found;
    };
    for (int a = 0; a < test.grid.size(); ++a)
      for (int b = 0; b < test.grid.size(); ++b)
        EXPECT_EQ(with(plans[a].sends, b), with(plans[b].receives, a)) << a << " and " << b;
  }
}

// Windows of 2 p + 1 pixels with stride 1 on equal parts: p rows or columns cross each border in each
// direction, and p² pixels cross each corner in four directions.
TEST(HaloPlan, EqualPartsExchangeTheirBorders) {
  constexpr int64_t kHeight = 24, kWidth = 32, kP = 2;
  for (const RankGrid& grid : {RankGrid{1, 2}, RankGrid{2, 2}, RankGrid{2, 4}, RankGrid{3, 4}}) {
    const int64_t borders = 2 * kP * ((grid.rows - 1) * kWidth + (grid.columns - 1) * kHeight);
    const int64_t corners = 4 * kP * kP * (grid.rows - 1) * (grid.columns - 1);
    EXPECT_EQ(halo_pixels(grid, {2 * kP + 1, 1, kP}, kHeight, kWidth), borders + corners);
  }
  EXPECT_EQ(halo_pixels({2, 4}, {4, 4, 0}, kHeight, kWidth), 0) << "windows that do not cross a border";
  EXPECT_EQ(halo_pixels({1, 1}, {9, 1, 4}, kHeight, kWidth), 0);
}

// The parts of the output need not lie above those of the input, and a window may reach over a whole part.
TEST(HaloPlan, AHaloMayComeFromSeveralRanksOfARow) {
  const HaloPlan plan = halo_plan({1, 4}, 0, {7, 1, 3}, 8, 8);
  EXPECT_EQ(plan.needed.columns, (PixelRange{0, 5}));
  ASSERT_EQ(plan.receives.size(), 2u);
  EXPECT_EQ(plan.receives[0].pixels.columns, (PixelRange{2, 4}));
  EXPECT_EQ(plan.receives[1].pixels.columns, (PixelRange{4, 5}));
}

TEST(HaloPlan, RanksWithoutAPositionAreRefused) {
  const auto message = [](const RankGrid& grid, const ImageWindows& windows) -> std::string {
    try {
      halo_plan(grid, 0, windows, 10, 10);
      return "";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message({4, 1}, {8, 1, 0}), HasSubstr("4 rows of ranks for 10 pixels and 3 positions"));
  EXPECT_THAT(message({1, 11}, {1, 1, 0}), HasSubstr("columns"));
  EXPECT_EQ(message({3, 3}, {8, 1, 0}), "");
}

TEST(RankGrid, AreReadFromTexts) {
  EXPECT_EQ(rank_grid_of("2x4", 8), (RankGrid{2, 4}));
  EXPECT_EQ(rank_grid_of("8x1", 8), (RankGrid{8, 1}));
  EXPECT_EQ(rank_grid_of("", 8), (RankGrid{2, 4}));
  EXPECT_EQ(rank_grid_of("", 12), (RankGrid{3, 4}));
  EXPECT_EQ(rank_grid_of("", 7), (RankGrid{1, 7}));
  EXPECT_EQ(rank_grid_of("", 16), (RankGrid{4, 4}));
  EXPECT_EQ(rank_grid_of(text_of({3, 5}), 15), (RankGrid{3, 5}));
  for (const char* text : {"2", "x", "2x", "x4", "2x4x1", "0x8", "-2x-4", "2 x4", "2x4 ", "99999999999x1"}) {
    try {
      rank_grid_of(text, 8);
      FAIL() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("write ROWSxCOLUMNS"));
    }
  }
  try {
    rank_grid_of("3x3", 8);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs 9 ranks, but there are 8"));
  }
}

}  // namespace
}  // namespace starling
