// HaloPlan says which pixels a rank of a grid exchanges with which ranks for a layer with windows.
//
// The input and the output of a layer are divided alike, each by its own size. A rank computes the positions
// of its part of the output. It needs the pixels under their windows, and some of these are parts of other
// ranks: the halo. A halo may be wider than the part of a neighbor. It then comes from several ranks.
//
// With N_r the rows that the ranks of grid row r need, O_r the rows that they hold, and columns alike, all
// ranks together receive this number of pixels:
//
//   halo = Σ_r |N_r| · Σ_c |N_c|  −  Σ_r |N_r ∩ O_r| · Σ_c |N_c ∩ O_c|
#pragma once

#include <cstdint>
#include <vector>

#include "starling/grid/rank_grid.h"
#include "starling/nn/layers/image_windows.h"

namespace starling {

// A rectangle that goes to or comes from a rank.
struct HaloPart {
  int peer = 0;
  PixelRect pixels;
};

// The plan of one rank. Parts are in the order of the ranks, and none is empty.
struct HaloPlan {
  PixelRect own;      // pixels of the input that this rank holds
  PixelRect outputs;  // positions of the output that this rank computes
  PixelRect covered;  // pixels under their windows, also those outside of the image
  PixelRect needed;   // pixels under their windows inside of the image
  std::vector<HaloPart> sends, receives;
};

// Returns the plan of a rank for images of height × width pixels. Errors: ConfigError if a rank would have no
// pixel of the input or no position of the output, and that of check_windows().
HaloPlan halo_plan(const RankGrid& grid, int rank, const ImageWindows& windows, int64_t height,
                   int64_t width);

// Returns the pixels that all ranks together receive, by the formula above. Errors: that of check_windows().
int64_t halo_pixels(const RankGrid& grid, const ImageWindows& windows, int64_t height, int64_t width);

}  // namespace starling
