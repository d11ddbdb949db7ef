#include "starling/lbfgs/line_search.h"

#include <algorithm>
#include <cmath>

namespace starling {
namespace {

constexpr double kGrowth = 10;      // largest factor from one step to the next while there is no bracket
constexpr double kLeastMove = 0.1;  // an interpolated step keeps this share of the bracket from its ends
constexpr double kSmallestBracket = 1e-15;  // relative to its larger end
constexpr double kSmallestStep = 1e-12;     // relative to the first step

// Returns the minimum of the cubic through two points with their slopes, or NaN if it has none.
double cubic_minimum(const LinePoint& a, const LinePoint& b) {
  const double d1 = a.slope + b.slope - 3 * (a.value - b.value) / (a.t - b.t);
  const double d2 = std::copysign(std::sqrt(d1 * d1 - a.slope * b.slope), b.t - a.t);
  return b.t - (b.t - a.t) * (b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2);
}

class WolfeSearch {
 public:
  WolfeSearch(const LinePoint& start, const WolfeOptions& options,
              const std::function<LinePoint(double)>& evaluate)
      : start_(start), options_(options), evaluate_(evaluate), best_(start) {}

  LineResult run(double first) {
    least_ = kSmallestStep * first;
    LinePoint before = start_;
    double t = first;
    while (calls_ < options_.evaluations) {
      const LinePoint p = at(t);
      if (!decreases(p) || higher(p, before)) return narrow(before, p);
      if (flat(p)) return {p, true, true};
      if (p.slope >= 0) return narrow(p, before);
      const double guess = cubic_minimum(before, p);
      before = p;
      t = std::isfinite(guess) ? std::clamp(guess, 2 * t, kGrowth * t) : kGrowth * t;
    }
    return give_up();
  }

 private:
  LinePoint at(double t) {
    ++calls_;
    last_ = evaluate_(t);
    if (decreases(last_) && last_.value <= best_.value) best_ = last_;
    return last_;
  }

  double slack() const { return options_.rounding * std::abs(start_.value); }

  bool decreases(const LinePoint& p) const {
    if (!std::isfinite(p.value) || !std::isfinite(p.slope)) return false;
    if (p.value <= start_.value + options_.decrease * p.t * start_.slope) return true;
    return p.value <= start_.value + slack() && p.slope <= (2 * options_.decrease - 1) * start_.slope;
  }
  bool higher(const LinePoint& p, const LinePoint& than) const {
    return than.t > 0 && p.value > than.value + slack();
  }
  bool flat(const LinePoint& p) const { return std::abs(p.slope) <= -options_.curvature * start_.slope; }

  // Returns a step inside of the bracket.
  double inside(const LinePoint& low, const LinePoint& high) const {
    const double width = high.t - low.t;
    double t = low.t + width / 2;
    if (std::isfinite(high.value) && std::isfinite(high.slope)) {
      const double guess = cubic_minimum(low, high);
      if (std::isfinite(guess)) t = guess;
    }
    const double near = low.t + kLeastMove * width, far = high.t - kLeastMove * width;
    return std::clamp(t, std::min(near, far), std::max(near, far));
  }

  // low: the lowest point that decreases φ. Its slope points to `high`, and a step that satisfies both
  // conditions lies between them.
  LineResult narrow(LinePoint low, LinePoint high) {
    while (calls_ < options_.evaluations &&
           std::abs(high.t - low.t) > std::max(least_, kSmallestBracket * std::max(low.t, high.t))) {
      const LinePoint p = at(inside(low, high));
      if (!decreases(p) || higher(p, low)) {
        high = p;
        continue;
      }
      if (flat(p)) return {p, true, true};
      if (p.slope * (high.t - low.t) >= 0) high = low;
      low = p;
    }
    return give_up();
  }

  // Returns the lowest point that decreases φ, after evaluating it again unless it was the last.
  LineResult give_up() {
    if (best_.t <= 0) return {start_, false, false};
    if (best_.t != last_.t) last_ = evaluate_(best_.t);
    return {last_, true, flat(last_)};
  }

  const LinePoint start_;
  const WolfeOptions& options_;
  const std::function<LinePoint(double)>& evaluate_;
  LinePoint best_, last_;
  double least_ = 0;
  int calls_ = 0;
};

}  // namespace

LineResult wolfe_search(const LinePoint& start, double first, const WolfeOptions& options,
                        const std::function<LinePoint(double)>& evaluate) {
  return WolfeSearch(start, options, evaluate).run(first);
}

}  // namespace starling
