// VectorShard holds one rank's slice of every vector and executes instructions on it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/lbfgs/vector_machine.h"

namespace starling {

// The elements begin … end - 1 of all vectors.
struct VectorSlice {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Returns the elements of the largest slice.
constexpr int64_t slice_width(int64_t elements, int shards) {
  return (elements + shards - 1) / shards;
}

// Returns the slice of a shard. All slices but the last ones have slice_width() elements.
VectorSlice slice_of_shard(int64_t elements, int shards, int shard);

// Returns the larger number, or NaN if one of them is NaN.
double larger(double a, double b);

// Not thread-safe.
class VectorShard {
 public:
  // elements: of a whole vector. memory: pairs of L-BFGS. All vectors begin with 0.
  VectorShard(int64_t elements, int shards, int shard, int memory);

  // Returns the elements of a whole vector.
  int64_t elements() const { return elements_; }
  // Returns the slice of this shard.
  const VectorSlice& slice() const { return slice_; }
  // Returns this shard's part of a vector. Errors: CommError for a vector that does not exist.
  std::span<double> vector(VectorId id);
  // Executes VectorMachine::combine().
  void combine(VectorId target, std::span<const VectorTerm> terms);
  // Returns this shard's part of a dot product.
  double dot(const VectorPair& pair);

  // The part of an evaluation that a shard contributes.
  struct Part {
    double squares = 0;           // the sum of the squares of penalized weights at kTrial
    double largest_gradient = 0;  // the largest absolute value in its part of kTrialGradient
  };
  // Sets kTrialGradient to sum / samples + ridge * kTrial. The last element of a whole vector is the
  // intercept, to which no penalty applies. sum: this shard's part of the sum over all samples.
  Part finish_gradient(std::span<const double> sum, int64_t samples, double ridge);

 private:
  const int64_t elements_;
  const VectorSlice slice_;
  std::vector<std::vector<double>> vectors_;
};

}  // namespace starling
