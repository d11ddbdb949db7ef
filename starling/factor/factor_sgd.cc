#include "starling/factor/factor_sgd.h"

#include <cmath>
#include <numeric>

#include "starling/base/keyed_random.h"

namespace starling {

Span part_of(int64_t count, int parts, int index) {
  return {count * index / parts, count * (index + 1) / parts};
}

int part_holding(int64_t count, int parts, int64_t item) {
  // This is the last part that begins at or before the item.
  return static_cast<int>(((item + 1) * parts - 1) / count);
}

VisitOrder::VisitOrder(size_t count, uint64_t key) : count_(count) {
  if (count < 2) return;
  start_ = key_of(key, 0, count) % count;
  for (uint64_t draw = 1;; ++draw) {
    stride_ = 1 + key_of(key, draw, count) % (count - 1);
    if (std::gcd(stride_, count) == 1) return;
  }
}

uint64_t visit_key(uint64_t seed, int64_t epoch, int row_block, int column_block) {
  return key_of(seed, static_cast<uint64_t>(epoch), (static_cast<uint64_t>(row_block) << 32) + column_block);
}

template <typename T>
FactorBlock<T>::FactorBlock(Span range_, int64_t room, int64_t factors_, MemoryBudget& budget)
    : range(range_),
      factors(factors_),
      values(static_cast<size_t>(room * factors_), T(0), CountedAllocator<T>(budget)) {}

template <typename T>
void FactorBlock<T>::start(uint64_t seed, int which, double mean) {
  const double middle = std::sqrt(std::abs(mean) / static_cast<double>(factors));
  for (int64_t i = range.begin; i < range.end; ++i) {
    for (int64_t f = 0; f < factors; ++f) {
      const uint64_t bits = key_of(seed + 0x5eed + which, static_cast<uint64_t>(i), static_cast<uint64_t>(f));
      values[static_cast<size_t>((i - range.begin) * factors + f)] =
          static_cast<T>(middle * (0.9 + 0.2 * uniform_of(bits)));
    }
  }
}

template <typename T>
SgdPass sgd_pass(std::span<const Rating> entries, const VisitOrder& order, size_t begin, size_t end,
                 double lr, double l2, FactorBlock<T>& w, FactorBlock<T>& h,
                 std::span<const uint8_t> chosen) {
  const T eta = static_cast<T>(lr), lambda = static_cast<T>(l2);
  const int64_t k = w.factors;
  SgdPass pass;
  for (size_t t = begin; t < end; ++t) {
    const Rating& rating = entries[order[t]];
    if (!chosen.empty() && chosen[static_cast<size_t>(rating.row - w.range.begin)] == 0) continue;
    T* a = w.row(rating.row);
    T* b = h.row(rating.column);
    T product = 0;
    for (int64_t f = 0; f < k; ++f) product += a[f] * b[f];
    const T e = static_cast<T>(rating.value) - product;
    for (int64_t f = 0; f < k; ++f) {
      const T old = a[f];
      a[f] += eta * (e * b[f] - lambda * old);
      b[f] += eta * (e * old - lambda * b[f]);
    }
    pass.squared += static_cast<double>(e) * static_cast<double>(e);
    ++pass.steps;
  }
  return pass;
}

template <typename T>
double squared_error(std::span<const Rating> entries, const FactorBlock<T>& w, const FactorBlock<T>& h) {
  double sum = 0;
  for (const Rating& rating : entries) {
    const T* a = w.row(rating.row);
    const T* b = h.row(rating.column);
    double product = 0;
    for (int64_t f = 0; f < w.factors; ++f) product += static_cast<double>(a[f]) * static_cast<double>(b[f]);
    sum += (rating.value - product) * (rating.value - product);
  }
  return sum;
}

template struct FactorBlock<float>;
template struct FactorBlock<double>;
template SgdPass sgd_pass(std::span<const Rating>, const VisitOrder&, size_t, size_t, double, double,
                          FactorBlock<float>&, FactorBlock<float>&, std::span<const uint8_t>);
template SgdPass sgd_pass(std::span<const Rating>, const VisitOrder&, size_t, size_t, double, double,
                          FactorBlock<double>&, FactorBlock<double>&, std::span<const uint8_t>);
template double squared_error(std::span<const Rating>, const FactorBlock<float>&, const FactorBlock<float>&);
template double squared_error(std::span<const Rating>, const FactorBlock<double>&,
                              const FactorBlock<double>&);

}  // namespace starling
