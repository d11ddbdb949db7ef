#include "starling/queue/usage.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace starling {

double usage_of(double slots, double begin_s, double end_s, double half_life_s) {
  const double length = std::max(0.0, end_s - begin_s);
  // ∫ 2^(-t/h) dt from 0 to `length`; expm1 keeps the digits of a length that is far below the half-life.
  return slots * half_life_s / std::numbers::ln2 * -std::expm1(-length * std::numbers::ln2 / half_life_s);
}

void DecayedUsage::decay_to(double now_s, double half_life_s) {
  if (now_s <= at_s) return;
  amount *= std::exp2(-(now_s - at_s) / half_life_s);
  at_s = now_s;
}

void DecayedUsage::add(double slots, double begin_s, double end_s, double half_life_s) {
  const double added = usage_of(slots, begin_s, end_s, half_life_s);
  decay_to(end_s, half_life_s);
  amount += added * std::exp2(-std::max(0.0, at_s - end_s) / half_life_s);
}

}  // namespace starling
