// RankGrid arranges the ranks of a group in rows and columns, and divides images among them. Rank r is at row
// r / columns and column r % columns. It holds one rectangle of each image and of each layer's output.
#pragma once

#include <cstdint>
#include <string>

#include "starling/nn/layers/image_windows.h"

namespace starling {

// A rectangle of an image.
struct PixelRect {
  PixelRange rows, columns;

  int64_t area() const { return rows.count() * columns.count(); }
  bool operator==(const PixelRect&) const = default;
};

// Returns what both rectangles have. area() is 0 if they have nothing in common.
inline PixelRect common_rect(const PixelRect& a, const PixelRect& b) {
  return {common_range(a.rows, b.rows), common_range(a.columns, b.columns)};
}

// Returns part `index` of `parts` contiguous parts of an axis. Their lengths differ by at most 1.
inline PixelRange part_of_axis(int64_t length, int64_t parts, int64_t index) {
  return {length * index / parts, length * (index + 1) / parts};
}

struct RankGrid {
  int rows = 1, columns = 1;

  int size() const { return rows * columns; }
  bool operator==(const RankGrid&) const = default;

  // Returns the rectangle of an image of height × width pixels that a rank holds.
  PixelRect part(int rank, int64_t height, int64_t width) const {
    return {part_of_axis(height, rows, rank / columns), part_of_axis(width, columns, rank % columns)};
  }
};

// Returns the grid that "ROWSxCOLUMNS" names, such as "2x4". An empty text names the grid of `ranks` ranks
// whose sides differ least, with the longer side as columns. Errors: ConfigError if the text is no grid or
// names another number of ranks.
RankGrid rank_grid_of(const std::string& text, int ranks);
// Returns the text of a grid.
std::string text_of(const RankGrid& grid);

}  // namespace starling
