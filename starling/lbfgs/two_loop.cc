#include "starling/lbfgs/two_loop.h"

#include <algorithm>
#include <cmath>

#include "starling/base/check.h"

namespace starling {
namespace {

constexpr double kLeastCurvature = 1e-10;

}  // namespace

TwoLoop::TwoLoop(int memory) : memory_(memory) {
  STARLING_CHECK(memory >= 1, "L-BFGS needs at least one pair");
  const size_t vectors = s_of(memory);
  products_.assign(vectors * vectors, 0);
}

size_t TwoLoop::at(VectorId a, VectorId b) const {
  return a * static_cast<size_t>(s_of(memory_)) + b;
}

int TwoLoop::free_slot() {
  if (static_cast<int>(order_.size()) == memory_) {
    const int oldest = order_.front();
    order_.erase(order_.begin());
    return oldest;
  }
  int slot = 0;
  while (std::find(order_.begin(), order_.end(), slot) != order_.end()) ++slot;
  return slot;
}

void TwoLoop::add(int slot) {
  order_.push_back(slot);
}

void TwoLoop::drop_newest() {
  order_.pop_back();
}

std::vector<VectorPair> TwoLoop::changed_products() const {
  std::vector<VectorPair> pairs = {{kGradient, kGradient}};
  if (order_.empty()) return pairs;
  const int newest = order_.back();
  pairs.push_back({s_of(newest), s_of(newest)});
  for (const int slot : order_) {
    pairs.push_back({s_of(slot), kGradient});
    pairs.push_back({y_of(slot), kGradient});
    pairs.push_back({s_of(slot), y_of(newest)});
    pairs.push_back({y_of(slot), y_of(newest)});
  }
  return pairs;
}

std::vector<VectorPair> TwoLoop::all_products() const {
  std::vector<VectorPair> pairs = {{kGradient, kGradient}};
  for (size_t i = 0; i < order_.size(); ++i) {
    pairs.push_back({s_of(order_[i]), kGradient});
    pairs.push_back({y_of(order_[i]), kGradient});
    for (size_t j = 0; j <= i; ++j) {  // the recursion reads s_j·y_i only where the pair i is not older
      pairs.push_back({s_of(order_[j]), y_of(order_[i])});
      pairs.push_back({y_of(order_[j]), y_of(order_[i])});
    }
  }
  return pairs;
}

void TwoLoop::take(std::span<const VectorPair> pairs, std::span<const double> values) {
  STARLING_CHECK(pairs.size() == values.size(), "one value per product");
  for (size_t i = 0; i < pairs.size(); ++i) {
    products_[at(pairs[i].a, pairs[i].b)] = values[i];
    products_[at(pairs[i].b, pairs[i].a)] = values[i];
  }
}

double TwoLoop::product(VectorId a, VectorId b) const {
  return products_[at(a, b)];
}

bool TwoLoop::newest_curves() const {
  if (order_.empty()) return false;
  const int slot = order_.back();
  const double squares = product(s_of(slot), s_of(slot)) * product(y_of(slot), y_of(slot));
  return product(s_of(slot), y_of(slot)) > kLeastCurvature * std::sqrt(squares);
}

std::vector<VectorTerm> TwoLoop::direction() const {
  const size_t k = order_.size();
  double of_g = 1;
  std::vector<double> of_s(k, 0), of_y(k, 0), alpha(k, 0);
  // Returns the product of the vector with the present combination.
  const auto with = [&](VectorId vector) {
    double sum = of_g * product(vector, kGradient);
    for (size_t j = 0; j < k; ++j) {
      // A product that the recursion never reads has a coefficient of 0.
      if (of_s[j] != 0) sum += of_s[j] * product(vector, s_of(order_[j]));
      if (of_y[j] != 0) sum += of_y[j] * product(vector, y_of(order_[j]));
    }
    return sum;
  };
  const auto curvature = [&](size_t i) { return product(s_of(order_[i]), y_of(order_[i])); };
  for (size_t i = k; i-- > 0;) {
    alpha[i] = with(s_of(order_[i])) / curvature(i);
    of_y[i] -= alpha[i];
  }
  if (k > 0) {
    const VectorId newest = y_of(order_.back());
    const double gamma = curvature(k - 1) / product(newest, newest);
    of_g *= gamma;
    for (double& factor : of_y) factor *= gamma;
  }
  for (size_t i = 0; i < k; ++i) of_s[i] += alpha[i] - with(y_of(order_[i])) / curvature(i);
  std::vector<VectorTerm> terms = {{-of_g, kGradient}};
  for (size_t i = 0; i < k; ++i) {
    terms.push_back({-of_s[i], s_of(order_[i])});
    terms.push_back({-of_y[i], y_of(order_[i])});
  }
  return terms;
}

}  // namespace starling
