// LayerRule updates parameters whose learning rate or weight decay depends on the tensor that they belong to.
//
//   lars   You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", arXiv 1708.03888.
//          rate = lr · trust |w| / (|g| + weight_decay |w|), then as sgd with this rate
//   lamb   You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", arXiv
//          1904.00962.
//          r = m̂ / (sqrt(v̂) + eps) + weight_decay w, with the new m and v of adam
//          rate = lr · |w| / |r|, then as adamw with this rate, so w := w - rate · r
//
// |·| is the Euclidean norm over one tensor. If a norm is 0, or the rate would be above 1e30, it is lr. With
// optimizer.exempt_vectors, tensors of one dimension (biases, scales of norms) have the rate lr and no weight
// decay, with every rule.
//
// A rank may hold parts of tensors only. It then adds up the squares of its parts, the caller sums them over
// the ranks, and each rank updates its parts. So an update needs two passes over the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/optim/update_rule.h"

namespace starling {

// A part of one tensor within a flat range.
struct LayerPart {
  size_t begin = 0, end = 0;  // elements of the range
  size_t tensor = 0;          // the number of the tensor
  bool vector = false;        // whether the whole tensor has at most one dimension
};

// The sums of squares of one tensor.
struct LayerSquares {
  double parameter = 0;  // of w
  double update = 0;     // lars: of g; lamb: of r
};

// Where updates_by_tensor() is true (spec/optimizer_refusal.h), a LayerRule makes the updates.
//
// LayerRule is a copyable value. It is thread-safe: the functions may run on disjoint parts at once.
class LayerRule {
 public:
  // Makes the rule of `spec`. Errors: those of UpdateRule.
  explicit LayerRule(const OptimizerSpec& spec, Isa isa = best_isa());

  // Returns whether apply() needs the squares.
  bool needs_squares() const { return lars_ || lamb_; }
  // Adds the squares of the parts to squares[part.tensor]. `args` describes the whole range. step: 1 for the
  // first update.
  template <typename T, typename G>
  void add_squares(const UpdateArgs<T, G>& args, std::span<const LayerPart> parts, int64_t step,
                   std::vector<LayerSquares>& squares) const;
  // Updates the parts. `squares` holds the squares of whole tensors; it is not read unless needs_squares().
  // Returns whether all elements of g are finite. If not, the outputs are useless.
  template <typename T, typename G>
  bool apply(const UpdateArgs<T, G>& args, std::span<const LayerPart> parts, double lr, int64_t step,
             const std::vector<LayerSquares>& squares) const;
  // Returns the learning rate of a tensor that is no exempt vector.
  double rate(double lr, const LayerSquares& squares) const;

 private:
  bool exempt(const LayerPart& part) const { return spec_.exempt_vectors && part.vector; }

  OptimizerSpec spec_;
  Isa isa_;
  bool lars_, lamb_;
  UpdateRule rule_, without_decay_;
};

}  // namespace starling
