// The usage of a user: slot-seconds that lose half of their weight after each half-life.
#pragma once

namespace starling {

// DecayedUsage holds ∫ slots · 2^(-(now - t) / half_life) dt up to the time of its last update. It is a value
// without a clock. Times are seconds of one clock.
struct DecayedUsage {
  double amount = 0;  // slot-seconds
  double at_s = 0;    // the time for which `amount` holds

  // Moves the value to a later time. A time before at_s changes nothing.
  void decay_to(double now_s, double half_life_s);
  // Adds a job that held `slots` from begin_s to end_s, and moves the value to end_s if that is later.
  void add(double slots, double begin_s, double end_s, double half_life_s);
};

// Returns the usage, at end_s, of one job that held `slots` from begin_s to end_s. Returns 0 if end_s is not
// later.
double usage_of(double slots, double begin_s, double end_s, double half_life_s);

}  // namespace starling
