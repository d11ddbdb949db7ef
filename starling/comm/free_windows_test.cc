// Tests that windows which all ranks have dropped are unmapped before the group ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/bootstrap.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

constexpr int kAllocated = 20;

// Returns the number of regions of allocated windows that this process maps.
int mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/window/") != std::string::npos ? 1 : 0;
  return count;
}

GroupSetup setup_of(const ThreadRank& at, bool free_windows) {
  GroupSetup setup;
  setup.rank = at.rank;
  setup.size = at.size;
  setup.options.free_windows = free_windows;
  return setup;
}

// Allocates windows one after another, reduces in them and drops them. Calls seen(i) on rank 0 while only
// window i is needed.
void allocate_often(const ThreadRank& at, Group& group, const std::function<void(int)>& seen) {
  for (int i = 0; i < kAllocated; ++i) {
    const auto window = group.allocate_window(100'000);
    auto* values = reinterpret_cast<float*>(window->region(group.local_rank()));
    std::fill(values, values + 25'000, static_cast<float>(i + at.rank));
    all_reduce(group, values, 25'000, DataType::kFp32, ReduceOp::kSum);
    EXPECT_EQ(values[24'999], static_cast<float>(3 * i + 3));
    barrier(group);
    if (at.rank == 0) seen(i);
    barrier(group);
  }
}

// The ranks are threads of this process, so that a window of 3 ranks is mapped 3 times, with 3 regions each.
TEST(FreeWindows, WhatAllRanksHaveDroppedIsUnmapped) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = make_group(*at.store, setup_of(at, true));
    allocate_often(at, *group, [](int i) { EXPECT_EQ(mapped_regions(), 9) << "with window " << i; });
  });
}

TEST(FreeWindows, AWindowThatOneRankStillHasStaysOnAll) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = make_group(*at.store, setup_of(at, true));
    std::shared_ptr<Window> kept = group->allocate_window(64);
    if (at.rank != 2) kept.reset();
    allocate_often(at, *group, [](int) { EXPECT_EQ(mapped_regions(), 18); });
    kept.reset();
    const auto last = group->allocate_window(64);
    barrier(*group);
    EXPECT_EQ(mapped_regions(), 9);
    barrier(*group);
  });
}

TEST(FreeWindows, WithoutTheOptionTheGroupKeepsThem) {
  run_ranks(3, [](const ThreadRank& at) {
    const auto group = make_group(*at.store, setup_of(at, false));
    allocate_often(at, *group, [](int i) { EXPECT_EQ(mapped_regions(), 9 * (i + 1)); });
  });
}

}  // namespace
}  // namespace starling
