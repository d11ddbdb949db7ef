// What fair sharing would give each user, and how far a schedule is from it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace starling {

// Returns Jain's index (Σ x)² / (n Σ x²), from 1/n to 1, of values of at least 0. Equal values have the index
// 1. Returns 1 for no values and for zeros (Jain, Chiu, Hawe: A Quantitative Measure of Fairness, 1984).
double jain_index(const std::vector<double>& values);

// Divides `amount` among users: each gets at most its cap, and what is left over goes to the users below
// their caps in proportion to their shares (weighted max-min fairness). Returns one value per user.
std::vector<double> divide_fairly(double amount, const std::vector<double>& shares,
                                  const std::vector<double>& caps);

// The work of a job as a fluid.
struct FluidJob {
  std::string user;
  double submitted_s = 0;
  double slots = 1;  // the job uses at most so many slots at a time
  double run_s = 0;  // its work is slots * run_s
};

// Returns the slot-seconds that each user of `shares` receives up to end_s if jobs can be divided at will and
// stopped without cost: generalized processor sharing of `slots` slots in steps of step_s. A user's jobs are
// served in the order of submission (Parekh, Gallager: A Generalized Processor Sharing Approach, 1993).
std::map<std::string, double> fluid_service(const std::vector<FluidJob>& jobs,
                                            const std::map<std::string, double>& shares, double slots,
                                            double end_s, double step_s);

}  // namespace starling
