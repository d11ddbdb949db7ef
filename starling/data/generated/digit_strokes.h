// The strokes of the ten digits. Each digit has a few forms, and each form has a few strokes.
#pragma once

#include <vector>

namespace starling {

// A point of a stroke.
struct StrokePoint {
  double x = 0;  // 0 left … 1 right
  double y = 0;  // 0 top … 1 bottom
};
// One stroke of the pen.
using Stroke = std::vector<StrokePoint>;  // points of a Catmull-Rom spline
// One form of a digit.
using Glyph = std::vector<Stroke>;

// Returns the forms of `digit` (0 … 9); at least one.
std::vector<Glyph> glyphs_of(int digit);

}  // namespace starling
