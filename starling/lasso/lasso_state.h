// What a run of the lasso changes, and its checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/job/job_checkpoint.h"
#include "starling/lasso/lasso_data.h"
#include "starling/lasso/priority_tree.h"

namespace starling {

// LassoState is a run between two rounds. All members but the residual are equal on all ranks.
struct LassoState {
  // residual: y of this rank's samples.
  LassoState(int64_t features, double exploration, const std::vector<double>& targets)
      : weights(static_cast<size_t>(features), 0), residual(targets), priorities(features, exploration) {}

  std::vector<double> weights;   // β
  std::vector<double> residual;  // r = y − Xβ of this rank's samples
  PriorityTree priorities;
  double l1 = 0;     // ‖β‖₁
  double bound = 0;  // the largest lower bound of the minimum so far
  int64_t rounds = 0;
  int64_t updates = 0;
  int64_t passes = 0;      // over all features
  int64_t since_pass = 0;  // updates since the last pass
  int64_t since_look = 0;  // updates since the last pass or refresh
  double mass = 0;         // Σ |δβ| after the last pass or refresh
  // By priority: the features that a refresh looks at. The active set: the features of a sweep, or none if a
  // complete cycle is next.
  std::vector<int64_t> active;
  // By priority: the Σ |δβ| at which a pass follows. The active set: the change of the objective below which
  // a sweep ends the inner loop.
  double settled = 0;

  // Adds what this rank stores.
  void put(CheckpointArrays& arrays, int rank) const;
  // Returns the scalars.
  std::map<std::string, std::string> values() const;
  // Takes a checkpoint of any number of ranks. data: of this rank. Errors: Error(kCheckpoint).
  void take(const JobCheckpoint& checkpoint, const JobState& state, const LassoData& data);
};

}  // namespace starling
