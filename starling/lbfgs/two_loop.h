// TwoLoop is the two-loop recursion of L-BFGS in scalars. It turns dot products of the stored vectors into
// the coefficients of the search direction, and needs no vector.
//
// The recursion is that of Nocedal 1980 (Nocedal and Wright, Numerical Optimization, algorithm 7.4). It goes
// over the pairs s_i, y_i from the newest pair to the oldest and back, with ρ_i = 1 / (s_i·y_i):
//
//   q ← g.
//   α_i ← ρ_i s_i·q,   q ← q − α_i y_i.                     From the newest pair to the oldest.
//   r ← γ q,   γ = s·y / y·y of the newest pair.
//   β ← ρ_i y_i·r,   r ← r + (α_i − β) s_i.                 From the oldest pair to the newest.
//   d = −r.
//
// All vectors in it are combinations of g, s_i and y_i. Their coefficients and the products of these vectors
// suffice (Chen, Wang and Zhou, NIPS 2014).
#pragma once

#include <span>
#include <vector>

#include "starling/lbfgs/vector_machine.h"

namespace starling {

// Pure logic: no threads, no messages. Not thread-safe.
class TwoLoop {
 public:
  // memory: the largest number of pairs, at least 1.
  explicit TwoLoop(int memory);

  // Returns the slot that the next pair takes: a free one, or that of the oldest pair, which is then
  // forgotten. Call add() next.
  int free_slot();
  // Adds the pair in `slot` as the newest.
  void add(int slot);
  // Removes the newest pair.
  void drop_newest();
  // Removes all pairs.
  void clear() { order_.clear(); }
  // Returns the slots of the pairs, oldest first.
  const std::vector<int>& slots() const { return order_; }
  // Sets the slots, for a resumed run.
  void restore(const std::vector<int>& slots) { order_ = slots; }

  // Returns the products that change when the newest pair is added and the gradient changes. With 0 pairs it
  // is g·g alone.
  std::vector<VectorPair> changed_products() const;
  // Returns all products that direction() reads.
  std::vector<VectorPair> all_products() const;
  // Takes the values of products.
  void take(std::span<const VectorPair> pairs, std::span<const double> values);
  // Returns the product of two vectors that take() has received.
  double product(VectorId a, VectorId b) const;
  // Returns whether the newest pair has enough curvature: s·y > 1e-10 |s| |y|. Other pairs would make the
  // matrix of the recursion lose its positive definiteness.
  bool newest_curves() const;

  // Returns the coefficients of d = −H g. Without pairs, d = −g.
  std::vector<VectorTerm> direction() const;

 private:
  size_t at(VectorId a, VectorId b) const;

  int memory_;
  std::vector<int> order_;        // slots, oldest first
  std::vector<double> products_;  // a symmetric matrix of the products of all vectors
};

}  // namespace starling
