#include "starling/optim/hogwild_update.h"

#include <atomic>

namespace starling {
namespace {

// Subtracts `fall` from an element. Returns how often another thread changed the element meanwhile.
template <typename T>
uint64_t subtract(T& element, T fall) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);
  const std::atomic_ref<T> x(element);
  uint64_t retries = 0;
  T before = x.load(std::memory_order_relaxed);
  while (!x.compare_exchange_strong(before, before - fall, std::memory_order_relaxed)) ++retries;
  return retries;
}

template <typename T>
HogwildCounts update_all(const HogwildUpdate<T>& u) {
  const T lr = static_cast<T>(u.lr), scale = static_cast<T>(u.gradient_scale);
  const T decay = static_cast<T>(u.weight_decay);
  HogwildCounts counts{.touched = u.count};
  for (size_t i = 0; i < u.count; ++i) {
    T g = scale * u.gradient[i];
    if (decay != T(0)) g = g + decay * u.read[i];
    counts.retries += subtract(u.shared[i], lr * g);
  }
  return counts;
}

template <typename T>
HogwildCounts update_some(const HogwildUpdate<T>& u) {
  const T lr = static_cast<T>(u.lr), scale = static_cast<T>(u.gradient_scale);
  HogwildCounts counts;
  for (size_t i = 0; i < u.count; ++i) {
    if (u.gradient[i] == T(0)) continue;
    counts.retries += subtract(u.shared[i], lr * (scale * u.gradient[i]));
    ++counts.touched;
  }
  return counts;
}

}  // namespace

template <typename T>
void hogwild_read(T* shared, T* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = std::atomic_ref<T>(shared[i]).load(std::memory_order_relaxed);
}

template <typename T>
HogwildCounts hogwild_update(const HogwildUpdate<T>& update) {
  return update.form == HogwildForm::kSparse ? update_some(update) : update_all(update);
}

template void hogwild_read(float*, float*, size_t);
template void hogwild_read(double*, double*, size_t);
template HogwildCounts hogwild_update(const HogwildUpdate<float>&);
template HogwildCounts hogwild_update(const HogwildUpdate<double>&);

}  // namespace starling
