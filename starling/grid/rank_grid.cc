#include "starling/grid/rank_grid.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "starling/base/error.h"

namespace starling {
namespace {

// Returns the number that is the whole text, or -1.
int grid_side(const std::string& text) {
  int value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= 1 && value <= (1 << 15) ? value : -1;
}

}  // namespace

RankGrid rank_grid_of(const std::string& text, int ranks) {
  if (text.empty()) {
    int rows = 1;
    for (int side = 2; side * side <= ranks; ++side)
      if (ranks % side == 0) rows = side;
    return {rows, ranks / rows};
  }
  const size_t cross = text.find('x');
  const int rows = grid_side(text.substr(0, cross));
  const int columns = cross == std::string::npos ? -1 : grid_side(text.substr(cross + 1));
  if (rows < 1 || columns < 1)
    throw ConfigError("--grid", fmt::format("\"{}\" is no grid; write ROWSxCOLUMNS, for example 2x4", text));
  if (int64_t{rows} * columns != ranks)
    throw ConfigError("--grid", fmt::format("a grid of {} needs {} ranks, but there are {}; write -n {}",
                                            text, int64_t{rows} * columns, ranks, int64_t{rows} * columns));
  return {rows, columns};
}

std::string text_of(const RankGrid& grid) {
  return fmt::format("{}x{}", grid.rows, grid.columns);
}

}  // namespace starling
