#include "starling/mcmc/component_walk.h"

#include <cmath>
#include <vector>

#include "starling/base/keyed_random.h"
#include "starling/mcmc/product.h"
#include "starling/mcmc/random_stream.h"

namespace starling {
namespace {

constexpr uint64_t kWalkKey = 0x77616c6b;  // tells the streams of one seed apart

// The draws in coordinates in which the product's covariance is diagonal, and the kernel stays isotropic:
//   y = Qᵀ D⁻¹ (x − μ̂),   D: the unit of each parameter,   Q: the eigenvectors of D⁻¹ Σ̂ D⁻¹
struct Coordinates {
  std::vector<double> center;  // μ̂
  std::vector<double> units;   // D
  Eigenvectors product;        // Q, and the variances of the product
  std::vector<PosteriorDraws> parts;
  // log N(θₘ | μ̂ₘ, Σ̂ₘ) of each draw, up to one constant for each part.
  std::vector<std::vector<double>> log_normal;

  explicit Coordinates(std::span<const PosteriorDraws> draws);
  std::vector<double> to(std::span<const double> x) const;
  void append_from(std::span<const double> y, std::vector<double>& out) const;
};

Coordinates::Coordinates(std::span<const PosteriorDraws> draws) {
  std::vector<Moments> moments;
  for (const PosteriorDraws& part : draws) moments.push_back(moments_of(part));
  const Moments whole = product_of(moments);
  const size_t d = whole.mean.size();
  center = whole.mean;
  units.assign(d, 0.0);
  for (const Moments& part : moments)
    for (size_t i = 0; i < d; ++i) units[i] += part.covariance(i, i) / static_cast<double>(moments.size());
  for (double& unit : units) unit = std::sqrt(unit);
  SquareMatrix scaled(d);
  for (size_t i = 0; i < d; ++i)
    for (size_t j = 0; j < d; ++j) scaled(i, j) = whole.covariance(i, j) / units[i] / units[j];
  product = eigen_of(scaled);
  for (const double variance : product.values)
    if (!(variance > 0)) refuse_product();
  for (size_t m = 0; m < draws.size(); ++m) {
    const NormalDensity normal(moments[m], static_cast<int>(m));
    PosteriorDraws part{draws[m].dimensions, {}};
    std::vector<double> logs;
    for (int64_t t = 0; t < draws[m].count(); ++t) {
      const std::vector<double> y = to(draws[m].row(t));
      part.values.insert(part.values.end(), y.begin(), y.end());
      logs.push_back(normal.log_density(draws[m].row(t)));
    }
    parts.push_back(std::move(part));
    log_normal.push_back(std::move(logs));
  }
}

std::vector<double> Coordinates::to(std::span<const double> x) const {
  const size_t d = units.size();
  std::vector<double> y(d, 0.0);
  for (size_t i = 0; i < d; ++i)
    for (size_t k = 0; k < d; ++k) y[k] += product.vectors(i, k) * (x[i] - center[i]) / units[i];
  return y;
}

void Coordinates::append_from(std::span<const double> y, std::vector<double>& out) const {
  const size_t d = units.size();
  for (size_t i = 0; i < d; ++i) {
    double sum = 0;
    for (size_t k = 0; k < d; ++k) sum += product.vectors(i, k) * y[k];
    out.push_back(center[i] + units[i] * sum);
  }
}

// The present component, with sums from which its weight follows in O(d).
class Component {
 public:
  Component(const Coordinates& in, Combination combination)
      : in_(in),
        weighs_normals_(combination == Combination::kSemiparametric),
        has_kernels_(combination == Combination::kNonparametric),
        index_(in.parts.size(), 0),
        sum_(in.units.size(), 0.0) {}

  // Takes draw t of part m in place of the present one, if there is one.
  void take(size_t m, int64_t t, bool first = false) {
    const std::span<const double> added = in_.parts[m].row(t), removed = in_.parts[m].row(index_[m]);
    for (size_t k = 0; k < sum_.size(); ++k) {
      sum_[k] += added[k] - (first ? 0 : removed[k]);
      squares_ += added[k] * added[k] - (first ? 0 : removed[k] * removed[k]);
    }
    normals_ += in_.log_normal[m][static_cast<size_t>(t)] -
                (first ? 0 : in_.log_normal[m][static_cast<size_t>(index_[m])]);
    index_[m] = t;
  }
  int64_t index(size_t m) const { return index_[m]; }

  // log w or log W, up to a constant for one bandwidth. variance: h².
  double log_weight(double variance) const {
    const double m = parts();
    double mean_squares = 0, normal = 0;
    for (size_t k = 0; k < sum_.size(); ++k) {
      const double mean = sum_[k] / m;
      mean_squares += mean * mean;
      normal -= mean * mean / (in_.product.values[k] + variance / m) / 2;
    }
    const double kernels = -(squares_ - m * mean_squares) / variance / 2;
    return weighs_normals_ ? kernels + normal - normals_ : kernels;
  }

  // Draws from the component's normal density.
  void draw(double variance, RandomStream& random, std::vector<double>& out) const {
    const double m = parts();
    std::vector<double> y(sum_.size());
    for (size_t k = 0; k < y.size(); ++k) {
      const double normal = has_kernels_ ? 0 : 1 / in_.product.values[k];
      const double own = 1 / (m / variance + normal);
      y[k] = own * m / variance * (sum_[k] / m) + std::sqrt(own) * random.normal();
    }
    in_.append_from(y, out);
  }

 private:
  double parts() const { return static_cast<double>(in_.parts.size()); }

  const Coordinates& in_;
  const bool weighs_normals_, has_kernels_;
  std::vector<int64_t> index_;
  std::vector<double> sum_;  // Σₘ θₘ
  double squares_ = 0;       // Σₘ |θₘ|²
  double normals_ = 0;       // Σₘ log N(θₘ | μ̂ₘ, Σ̂ₘ)
};

}  // namespace

CombinedDraws walk_components(Combination combination, std::span<const PosteriorDraws> parts, uint64_t seed) {
  const Coordinates in(parts);
  Component component(in, combination);
  RandomStream random(key_of(seed, kWalkKey, static_cast<uint64_t>(combination)));
  const int64_t count = parts.front().count();
  for (size_t m = 0; m < parts.size(); ++m) component.take(m, random.below(count), /*first=*/true);
  CombinedDraws combined;
  combined.draws.dimensions = parts.front().dimensions;
  const double exponent = -2.0 / (4.0 + static_cast<double>(combined.draws.dimensions));
  int64_t accepted = 0, proposals = 0;
  for (int64_t i = 1; i <= count; ++i) {
    const double variance = std::pow(static_cast<double>(i), exponent);
    double weight = component.log_weight(variance);
    for (int sweep = 0; sweep < kWalkSweeps; ++sweep) {
      for (size_t m = 0; m < parts.size(); ++m, ++proposals) {
        const int64_t before = component.index(m);
        component.take(m, random.below(count));
        const double proposed = component.log_weight(variance);
        if (std::log1p(-random.uniform()) < proposed - weight) {
          weight = proposed;
          ++accepted;
        } else {
          component.take(m, before);
        }
      }
    }
    component.draw(variance, random, combined.draws.values);
  }
  combined.acceptance = static_cast<double>(accepted) / static_cast<double>(proposals);
  return combined;
}

}  // namespace starling
