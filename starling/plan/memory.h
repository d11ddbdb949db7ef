// Predicts the memory of a rank's model states under ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, §3.1
// and §5) before anything runs.
//
// An element of the model needs w bytes as a parameter, g bytes as a gradient and o bytes in the optimizer. k
// is the number of states of the update rule (2 for Adam):
//
//              w  g  o
//   fp32       4  4  4k
//   bf16       2  2  4 + 4k   (fp32 master parameters)
//   fp64       8  8  8k
//
// A rank holds, for Ψ parameters on N ranks, with Adam as the example:
//
//                           in general              Adam in bf16     Adam in fp32
//   stage 0 (none)          (w + g + o)Ψ            16Ψ              16Ψ
//   stage 1 (optimizer)     (w + g)Ψ + oΨ/N         4Ψ + 12Ψ/N       8Ψ + 8Ψ/N
//   stage 2 (gradients)     wΨ + (g + o)Ψ/N         2Ψ + 14Ψ/N       4Ψ + 12Ψ/N
//   stage 3 (parameters)    (w + g + o)Ψ/N          16Ψ/N            16Ψ/N
//
// Activations, unreduced buckets and the blocks that stage 3 has gathered are not included.
#pragma once

#include <cstdint>

#include "starling/spec/run_spec.h"

namespace starling {

// Bytes per element of the model.
struct ElementBytes {
  double parameter = 4;
  double gradient = 4;
  double optimizer = 8;
};

// Returns the bytes per element. states: the number of states of the update rule, from 0 (plain sgd) to 2
// (adam).
ElementBytes element_bytes(Precision precision, int states);

// Bytes of the model states of one rank.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  // The sum of all three.
  double total() const { return parameters + gradients + optimizer; }
};

// Returns the bytes of one rank. stage: 0 to 3; parameters: Ψ; ranks: N ≥ 1.
StateBytes zero_state_bytes(const ElementBytes& element, double parameters, int64_t ranks, int stage);

// Returns the number of elements that a rank receives in a step: 2Ψ(N − 1)/N for stages 0 to 2. Stage 3
// receives 3Ψ(N − 1)/N, because it gathers the parameters for forward and for backward. If the batch has k
// parts (train.accumulate), stage 2 reduces the gradients of each part and receives (1 + k)Ψ(N − 1)/N. Stage
// 3 receives 3kΨ(N − 1)/N.
double zero_traffic_elements(double parameters, int64_t ranks, int stage, int64_t parts = 1);

}  // namespace starling
