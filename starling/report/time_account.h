// TimeAccount divides the wall-clock time of a run into categories. It names the rank that the other ranks
// waited for. It estimates what one process would have taken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/report/run_times.h"
#include "starling/spec/run_spec.h"
#include "starling/spec/strategy_table.h"

namespace starling {

// The categories of a run's time. They are disjoint, and kOther is what the other categories leave.
enum class TimeUse {
  kComputation,
  kWaiting,   // for the rank that is late in most steps
  kExchange,  // the rest of the exposed communication: bytes in transit, and ranks that are late by turns
  kData,
  kEvaluation,
  kCheckpoints,
  kRecovery,  // after ranks were lost
  kStartup,   // from the call that trains to the first step
  kEnding,    // trained weights and the result
  kOther,
};
constexpr int kTimeUses = 10;

// Returns the name of a category in texts, for example "start-up".
const char* name_of(TimeUse use);
// Returns the name of a category in JSON, for example "startup_s".
const char* key_of(TimeUse use);

// The rank that the other ranks waited for. Its times are those of the starts in which it was late.
struct LateRank {
  int64_t rank = 0;
  std::string host;  // empty if it is unknown, or if the rank was on several hosts in these starts
  // The share of the wall-clock time for which another rank waited for this rank, as a mean over these ranks.
  // Only starts that list the times of their ranks count.
  double share = 0;
  bool by_data = false;  // the rank waited for data; otherwise it computed longer
  // Its computation and data, divided by the mean of the other ranks'; 0 if the other ranks have none.
  double slowness = 0;
};

// The account of a run's time.
struct TimeAccount {
  std::optional<RunSpec> spec;  // the configuration; empty if it could not be read
  ExchangeTraits exchange;      // without a name if the exchange is not known: that of a program
  // Of the last start.
  RunStarted started;
  int64_t hosts = 1;         // 1 if it is unknown
  bool ended = false;        // the last start reported a result
  bool interrupted = false;  // the last start was interrupted
  int64_t starts = 1;
  int64_t steps = 0;                         // of all starts
  int64_t test_samples = 0;                  // of the last evaluation
  std::map<std::string, double> statistics;  // the strategy statistics of the last start that ended
  int64_t statistics_steps = 0;              // the steps of that start
  int64_t statistics_ranks = 0;              // the ranks of that start
  double wall_s = 0;                         // of all starts
  double longest_start_s = 0;                // the wall-clock time of the longest start
  double seconds[kTimeUses] = {};            // by TimeUse; their sum is wall_s
  // Parts of waiting and exchange by phase (parallel/strategy.h), and of "other" phases. Empty if a start
  // does not say them.
  std::map<std::string, double> phases;
  bool phases_known = true;  // false: a start with exchange does not say its phases
  std::optional<LateRank> late;
  // What one process would have taken for the same steps, and how it is estimated or why it is not known.
  std::optional<double> one_process_s;
  std::string one_process_why;
  std::vector<std::string> missing;  // what the folder does not say, and how to get it

  double of(TimeUse use) const { return seconds[static_cast<int>(use)]; }
  // Returns the share of the wall-clock time, from 0 to 1.
  double share(TimeUse use) const { return wall_s > 0 ? of(use) / wall_s : 0; }
  // Returns the number `key` of the strategy statistics, or `otherwise` if the run did not report it.
  double statistic(const std::string& key, double otherwise) const;
  // Returns the bytes that a rank sends in a step, as a mean, or 0 if the run did not report them.
  double bytes_per_rank_and_step() const;
  // True if the host of the leading rank has fewer cores than the run has threads there.
  bool shares_cores() const;
};

// Adds up all starts of a run. `spec` is the configuration, if it is known. `times` has at least one start.
TimeAccount account_of(const RunTimes& times, const std::optional<RunSpec>& spec);

}  // namespace starling
