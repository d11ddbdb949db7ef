// The updates of threads that train one model without locks (Hogwild: Recht, Re, Wright, Niu, NIPS 2011,
// arXiv 1106.5730, algorithm 1).
//
//   x̂ ← read x.                           One element after another, while other threads update x.
//   x_i ← x_i − lr (s g_i + λ x̂_i).       For each element i, as one atomic addition.
//
// x is shared by all threads, and g is the gradient at x̂. s is a factor, and λ is the weight decay. The
// dense form updates every element. The sparse form updates the elements whose gradient is not 0, and leaves
// out the weight decay.
//
// Every access to x is an atomic operation of one element with relaxed order. So there is no data race, and
// no addition is lost. x̂ may mix elements from before and after an update of another thread. The result of
// several threads depends on their order, because sums of floating-point numbers are rounded. If no two
// threads update the same element, the result does not depend on the order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace starling {

// Which elements an update changes.
enum class HogwildForm { kDense, kSparse };

// One update. T: float or double.
template <typename T>
struct HogwildUpdate {
  T* shared = nullptr;          // x, `count` elements
  const T* gradient = nullptr;  // g
  const T* read = nullptr;      // x̂; may be null if weight_decay is 0
  size_t count = 0;
  double lr = 0;
  double gradient_scale = 1;  // s
  double weight_decay = 0;    // λ; has no effect in the sparse form
  HogwildForm form = HogwildForm::kDense;
};

// What an update did.
struct HogwildCounts {
  uint64_t touched = 0;  // elements that it changed, or added 0 to
  uint64_t retries = 0;  // additions that were repeated, because another thread changed the element meanwhile
};

// Copies `count` elements of `shared`, which other threads may update meanwhile, to `out`. Thread-safe. T:
// float or double.
template <typename T>
void hogwild_read(T* shared, T* out, size_t count);

// Performs an update. Thread-safe: several threads may update and read the same elements at once. One thread
// alone gets the bits of UpdateRule's sgd without momentum. T: float or double.
template <typename T>
HogwildCounts hogwild_update(const HogwildUpdate<T>& update);

}  // namespace starling
