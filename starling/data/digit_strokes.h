// How the ten digits are written: for each a few forms, each of a few strokes.
#pragma once

#include <vector>

namespace starling {

struct StrokePoint {
  double x = 0;  // 0 left … 1 right
  double y = 0;  // 0 top … 1 bottom
};
using Stroke = std::vector<StrokePoint>;  // points of a Catmull-Rom spline
using Glyph = std::vector<Stroke>;

// The forms of `digit` (0 … 9), at least one.
std::vector<Glyph> glyphs_of(int digit);

}  // namespace starling
