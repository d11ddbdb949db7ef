// The lasso by dynamically scheduled updates of weights, as STRADS makes them (Kim et al., "STRADS: A
// distributed framework for scheduled model parallel machine learning", EuroSys 2016; Lee et al., NIPS 2014).
// docs/explanation/lasso.md describes it. A round has three parts:
//
//   schedule  Draw U features by priority c_j = |δβ_j| + η (priority_tree.h).
//   push      Each rank computes x_jᵀr over its samples, for each feature j drawn. The sums over all ranks
//             give the changes δβ_j (lasso_problem.h).
//   pull      Take the largest changes whose features have pairwise correlations below ρ, and leave the rest
//             for later rounds (update_schedule.h). Each rank updates its r.
//
// STRADS checks the correlations before the push. Here the check follows the push, so that it leaves out
// features whose weights do not change.
//
// All ranks hold all weights and priorities, and compute equal schedules. Only sums over samples are sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/lasso/lasso_data.h"
#include "starling/lasso/update_schedule.h"

namespace starling {

struct LassoOptions {
  ScheduleKind schedule = ScheduleKind::kStrads;
  double lambda = 0;          // λ; 0: lambda_share of the smallest λ at which all weights are zero
  double lambda_share = 0.1;  // above 0 and below 1
  bool intercept = true;
  double tolerance = 1e-6;       // the run ends when the duality gap is at most this share of P(0)
  std::optional<double> target;  // the run also ends when P is at most this
  int64_t max_updates = 1'000'000'000;
  int64_t updates = 64;             // U: updates that a round computes
  double limit = 0.1;               // ρ: weights that change in one round have pairwise smaller correlations
  uint64_t seed = 0;                // of the draws
  double exploration = 0.02;        // ε of priority_tree.h
  std::string checkpoint;           // folder of the checkpoint; empty: none
  int64_t checkpoint_every = 1000;  // rounds; 0: at the end only
};

// Why a run ended.
enum class LassoEnd { kConverged, kTarget, kUpdates, kDiverged, kStopped };

// LassoProgress is what is known after a pass over all features.
struct LassoProgress {
  int64_t rounds = 0;
  int64_t updates = 0;
  int64_t passes = 0;
  int64_t nonzeros = 0;
  double objective = 0;  // P
  double gap = 0;        // the duality gap
  double seconds = 0;    // since the start
};

// The environment of a rank's work. All references must outlive the call.
struct LassoParts {
  Group& group;
  LassoData& data;  // of this rank; the call centers it
  const Clock& clock;
  // Set on some rank: the ranks write a checkpoint and end after the round. May be null.
  const std::atomic<bool>* stop = nullptr;
  // Receives what is known after each pass, on rank 0. May be empty.
  std::function<void(const LassoProgress&)> on_pass = {};
  // Receives the round of the checkpoint from which the run goes on, on rank 0. May be empty.
  std::function<void(int64_t)> on_resumed = {};
  // Receives the changes that each round makes at once, on all ranks. May be empty.
  std::function<void(const std::vector<ProposedChange>&)> on_round = {};
};

// What a run reports. It is equal on all ranks, apart from `seconds`.
struct LassoResult {
  LassoEnd end = LassoEnd::kConverged;
  LassoProgress last;  // at the end
  double lambda = 0;
  double lambda_max = 0;         // the smallest λ at which all weights are zero
  double objective_at_zero = 0;  // P(0)
  int64_t pairs = 0;             // correlations that this process computed
  int64_t looked = 0;            // features that the passes and refreshes of this process looked at
  int64_t resumed_from = -1;     // the round of the checkpoint; −1: none
  double seconds = 0;            // until the run ended, without reading data and without the last report
  double schedule_seconds = 0;   // of it, the choice of features
  std::vector<double> weights;
  double intercept = 0;
};

// Throws ConfigError if an option is out of range.
void check_lasso(const LassoOptions& options);

// Minimizes. Collective. Errors: ConfigError, from check_lasso() and for a checkpoint of another run;
// DataError; Error(kCheckpoint); CommError. A run whose objective grows without bound ends with kDiverged.
LassoResult solve_lasso(const LassoOptions& options, const LassoParts& parts);

}  // namespace starling
