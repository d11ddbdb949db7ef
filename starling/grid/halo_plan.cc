#include "starling/grid/halo_plan.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the pixels inside of the image under the windows of a part of the positions.
PixelRange needed_range(const ImageWindows& windows, int64_t length, PixelRange positions) {
  return common_range(windows.covered(positions), {0, length});
}

PixelRect needed_rect(const RankGrid& grid, int rank, const ImageWindows& windows, int64_t height,
                      int64_t width) {
  const PixelRect outputs = grid.part(rank, windows.positions(height), windows.positions(width));
  return {needed_range(windows, height, outputs.rows), needed_range(windows, width, outputs.columns)};
}

void check_axis(const char* axis, int parts, const ImageWindows& windows, int64_t length) {
  const int64_t positions = windows.positions(length);
  if (length >= parts && positions >= parts) return;
  throw ConfigError(
      "--grid",
      fmt::format("{} {} of ranks for {} pixels and {} positions of windows ({} pixels, stride {}): "
                  "some ranks would have none; use fewer {}, or smaller windows and strides",
                  parts, axis, length, positions, windows.size, windows.stride, axis));
}

// What the parts of an axis need, and how much of it they hold.
struct AxisSums {
  int64_t needed = 0, held = 0;
};
AxisSums axis_sums(int parts, const ImageWindows& windows, int64_t length) {
  AxisSums sums;
  for (int index = 0; index < parts; ++index) {
    const PixelRange needed =
        needed_range(windows, length, part_of_axis(windows.positions(length), parts, index));
    sums.needed += needed.count();
    sums.held += common_range(needed, part_of_axis(length, parts, index)).count();
  }
  return sums;
}

}  // namespace

HaloPlan halo_plan(const RankGrid& grid, int rank, const ImageWindows& windows, int64_t height,
                   int64_t width) {
  check_windows(windows);
  check_axis("rows", grid.rows, windows, height);
  check_axis("columns", grid.columns, windows, width);
  HaloPlan plan;
  plan.own = grid.part(rank, height, width);
  plan.outputs = grid.part(rank, windows.positions(height), windows.positions(width));
  plan.covered = {windows.covered(plan.outputs.rows), windows.covered(plan.outputs.columns)};
  plan.needed = needed_rect(grid, rank, windows, height, width);
  for (int peer = 0; peer < grid.size(); ++peer) {
    if (peer == rank) continue;
    const PixelRect sent = common_rect(plan.own, needed_rect(grid, peer, windows, height, width));
    if (sent.area() > 0) plan.sends.push_back({peer, sent});
    const PixelRect received = common_rect(plan.needed, grid.part(peer, height, width));
    if (received.area() > 0) plan.receives.push_back({peer, received});
  }
  return plan;
}

int64_t halo_pixels(const RankGrid& grid, const ImageWindows& windows, int64_t height, int64_t width) {
  check_windows(windows);
  const AxisSums rows = axis_sums(grid.rows, windows, height);
  const AxisSums columns = axis_sums(grid.columns, windows, width);
  return rows.needed * columns.needed - rows.held * columns.held;
}

}  // namespace starling
