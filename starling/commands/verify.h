// `starling verify` checks that p ranks make the update that one process makes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/run/training.h"

namespace starling {

// The difference of one tensor's update from the reference.
struct Deviation {
  std::string tensor;
  double relative = 0;  // |update - reference| / |reference|, Euclidean norms, the maximum over the steps
  int64_t step = 0;     // the step of the maximum
};

// The result of verify().
struct VerifyReport {
  std::vector<Deviation> deviations;  // one per parameter, largest first; complete on rank 0
  double tolerance = 0;
  // True if no deviation exceeds the tolerance.
  bool passed() const { return deviations.empty() || deviations.front().relative <= tolerance; }
};

// Runs spec.verify.steps steps as configured and compares their updates. Before each step, rank 0 takes the
// weights and optimizer states. It then makes the update alone in fp64, from the whole global batch and by
// the naive update rule. Collective. `on_bucket` is for tests (AllReduceOptions). Errors: ConfigError if one
// process cannot make the same update, for example with gossip or with local batch norm.
VerifyReport verify(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                    const RunEnvironment& environment, const OnBucket& on_bucket = {});

}  // namespace starling
