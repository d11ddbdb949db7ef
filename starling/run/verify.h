// `starling verify`: is the update that p ranks make the one that one process makes?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/parallel/all_reduce.h"
#include "starling/run/training.h"

namespace starling {

struct Deviation {
  std::string tensor;
  double relative = 0;  // |update - reference| / |reference|, Euclidean norms, the largest over the steps
  int64_t step = 0;     // where
};

struct VerifyReport {
  std::vector<Deviation> deviations;  // one a parameter, largest first; complete on rank 0
  double tolerance = 0;
  bool passed() const { return deviations.empty() || deviations.front().relative <= tolerance; }
};

// Collective. Runs spec.verify.steps steps as configured; before each, rank 0 takes the weights and optimizer states and
// makes the same update alone in fp64, from the whole global batch and by the naive update rule. on_bucket: tests only,
// see AllReduceOptions. Errors: ConfigError where one process cannot make the same update (local batch norm).
VerifyReport verify(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                    const Surroundings& around, const decltype(AllReduceOptions::on_bucket)& on_bucket = {});

}  // namespace starling
