// VectorMachine is what L-BFGS needs from those who hold the vectors: a few instructions. The algorithm sees
// names of vectors and scalars, and never a vector (docs/explanation/sandblaster.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace starling {

// The name of a vector. The pair in slot i is kFirstPair + 2 i (s) and kFirstPair + 2 i + 1 (y).
using VectorId = uint32_t;
inline constexpr VectorId kPoint = 0;          // x, the weights
inline constexpr VectorId kGradient = 1;       // g, the gradient at x
inline constexpr VectorId kDirection = 2;      // d, the search direction
inline constexpr VectorId kTrial = 3;          // x + t d
inline constexpr VectorId kTrialGradient = 4;  // the gradient at the trial point
inline constexpr VectorId kFirstPair = 5;

// Returns the name of s in a slot: the change of the weights in one iteration.
constexpr VectorId s_of(int slot) {
  return kFirstPair + 2 * static_cast<VectorId>(slot);
}
// Returns the name of y in a slot: the change of the gradient in one iteration.
constexpr VectorId y_of(int slot) {
  return s_of(slot) + 1;
}

// One summand of a linear combination.
struct VectorTerm {
  double factor = 0;
  VectorId vector = 0;
  uint32_t unused = 0;  // terms travel as bytes
};

// The two vectors of a dot product.
struct VectorPair {
  VectorId a = 0, b = 0;
};

// What an evaluation returns.
struct Evaluation {
  double objective = 0;
  double largest_gradient = 0;  // the largest absolute value of an element of the gradient
};

// The instructions. Not thread-safe.
class VectorMachine {
 public:
  virtual ~VectorMachine() = default;
  // Sets `target` to the sum of the terms, which may include `target`. Without terms it becomes 0. The
  // machine adds in the order of the terms.
  virtual void combine(VectorId target, std::span<const VectorTerm> terms) = 0;
  // Returns the dot product of each pair.
  virtual std::vector<double> dots(std::span<const VectorPair> pairs) = 0;
  // Computes the objective and its gradient at kTrial. The gradient goes to kTrialGradient.
  virtual Evaluation evaluate() = 0;
};

}  // namespace starling
