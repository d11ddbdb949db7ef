// Memory of a rank's model states under ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, §3.1 and §5), before anything runs.
//
// An element of the model costs w bytes as a parameter, g as a gradient, o in the optimizer:
//   fp32: 4, 4, 4k (k: states of the update rule; Adam 2)    bf16: 2, 2, 4 + 4k (fp32 master)    fp64: 8, 8, 8k
// Stage 0 (--shard none) holds (w + g + o)Ψ, 1 (optimizer) (w + g)Ψ + oΨ/N, 2 (gradients) wΨ + (g + o)Ψ/N, 3 (parameters)
// (w + g + o)Ψ/N: Adam in bf16 16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N, and in fp32 16Ψ; 8Ψ + 8Ψ/N; 4Ψ + 12Ψ/N; 16Ψ/N.
// Without activations, buckets on their way, and the blocks that stage 3 has gathered.
#pragma once

#include <cstdint>

#include "starling/spec/run_spec.h"

namespace starling {

struct ElementBytes {
  double parameter = 4;
  double gradient = 4;
  double optimizer = 8;
};

// states: of the update rule, 0 (plain sgd) to 2 (adam).
ElementBytes element_bytes(Precision precision, int states);

struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double total() const { return parameters + gradients + optimizer; }
};

// Of one rank. stage: 0 to 3; parameters: Ψ; ranks: N ≥ 1.
StateBytes zero_state_bytes(const ElementBytes& element, double parameters, int64_t ranks, int stage);

// Elements that a rank receives in a step: 2Ψ(N − 1)/N, with stage 3 one half more (parameters are gathered for forward and
// for backward).
double zero_traffic_elements(double parameters, int64_t ranks, int stage);

}  // namespace starling
