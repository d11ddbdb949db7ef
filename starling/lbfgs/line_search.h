// The line search of L-BFGS: finds a step t along a direction that satisfies the strong Wolfe conditions.
//
//   φ(t) ≤ φ(0) + c₁ t φ'(0)      and      |φ'(t)| ≤ c₂ |φ'(0)|.
//
// The search brackets a step and then narrows the bracket by cubic interpolation (Nocedal and Wright,
// Numerical Optimization, algorithms 3.5 and 3.6). Near the minimum the rounding of φ hides its decrease. The
// approximate condition of Hager and Zhang (SIAM Journal on Optimization 16, 2005) then also counts as a
// decrease:
//
//   φ(t) ≤ φ(0) + ε |φ(0)|        and      φ'(t) ≤ (2 c₁ − 1) φ'(0).
#pragma once

#include <functional>

namespace starling {

struct WolfeOptions {
  double decrease = 1e-4;   // c₁
  double curvature = 0.9;   // c₂
  double rounding = 1e-14;  // ε
  int evaluations = 30;     // the most calls of `evaluate` before the search gives up
};

// A point of φ.
struct LinePoint {
  double t = 0;
  double value = 0;  // φ(t)
  double slope = 0;  // φ'(t)
};

// The end of a search.
struct LineResult {
  LinePoint point;      // the accepted point, which was evaluated last
  bool found = false;   // false: no evaluated point decreases φ
  bool strong = false;  // the point satisfies both conditions; if not, only the first one
};

// Searches from φ(0) = `start`, whose slope must be negative. The first step that it tries is `first`, which
// must be positive. `evaluate` returns φ and its slope at t. A value that is not finite counts as too large.
LineResult wolfe_search(const LinePoint& start, double first, const WolfeOptions& options,
                        const std::function<LinePoint(double)>& evaluate);

}  // namespace starling
