// Compares the pure logic of L-BFGS with naive references. The recursion is compared with dense matrices, the
// line search with the definition of its conditions, and the loop with the solution of linear equations.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/lbfgs/gradient_fold.h"
#include "starling/lbfgs/line_search.h"
#include "starling/lbfgs/minimize.h"
#include "starling/lbfgs/two_loop.h"

namespace starling {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

double number(uint64_t a, uint64_t b, uint64_t c) {
  return 2 * uniform_of(key_of(a, b, c)) - 1;
}

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Matrix identity(size_t n, double scale) {
  Matrix m(n, Vector(n, 0));
  for (size_t i = 0; i < n; ++i) m[i][i] = scale;
  return m;
}

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), Vector(b.front().size(), 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.front().size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) c[i][j] += a[i][k] * b[k][j];
  return c;
}

// H ← (I − ρ s yᵀ) H (I − ρ y sᵀ) + ρ s sᵀ, the definition of BFGS.
Matrix updated(const Matrix& h, const Vector& s, const Vector& y) {
  const size_t n = s.size();
  const double rho = 1 / dot(s, y);
  Matrix left = identity(n, 1), right = identity(n, 1);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      left[i][j] -= rho * s[i] * y[j];
      right[i][j] -= rho * y[i] * s[j];
    }
  }
  Matrix result = times(times(left, h), right);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) result[i][j] += rho * s[i] * s[j];
  return result;
}

// Vectors in one process. The objective is given.
class NaiveMachine final : public VectorMachine {
 public:
  using Objective = std::function<double(const Vector& x, Vector& gradient)>;
  NaiveMachine(size_t n, Objective objective) : n_(n), objective_(std::move(objective)) {}

  Vector& at(VectorId id) {
    Vector& v = vectors_[id];
    v.resize(n_, 0);
    return v;
  }
  void combine(VectorId target, std::span<const VectorTerm> terms) override {
    Vector sum(n_, 0);
    for (const VectorTerm& term : terms)
      for (size_t i = 0; i < n_; ++i) sum[i] += term.factor * at(term.vector)[i];
    at(target) = sum;
  }
  std::vector<double> dots(std::span<const VectorPair> pairs) override {
    std::vector<double> values;
    for (const VectorPair& pair : pairs) values.push_back(dot(at(pair.a), at(pair.b)));
    return values;
  }
  Evaluation evaluate() override {
    ++evaluations;
    Evaluation result;
    result.objective = objective_(at(kTrial), at(kTrialGradient));
    for (const double g : at(kTrialGradient))
      result.largest_gradient = std::max(result.largest_gradient, std::abs(g));
    return result;
  }
  int evaluations = 0;

 private:
  const size_t n_;
  const Objective objective_;
  std::map<VectorId, Vector> vectors_;
};

TEST(TwoLoop, IsTheProductWithTheMatrixOfBfgs) {
  constexpr size_t kElements = 7;
  constexpr int kMemory = 4;
  NaiveMachine machine(kElements, {});
  TwoLoop recursion(kMemory);
  std::vector<std::pair<Vector, Vector>> kept;
  for (uint64_t step = 0; step < 11; ++step) {
    const int slot = recursion.free_slot();
    Vector s(kElements), y(kElements), g(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      s[i] = number(step, i, 1);
      y[i] = (1 + static_cast<double>(i)) * s[i] + 0.1 * number(step, i, 2);  // s·y > 0
      g[i] = number(step, i, 3);
    }
    machine.at(s_of(slot)) = s, machine.at(y_of(slot)) = y, machine.at(kGradient) = g;
    kept.emplace_back(s, y);
    if (kept.size() > kMemory) kept.erase(kept.begin());
    recursion.add(slot);
    const auto asked = recursion.changed_products();
    recursion.take(asked, machine.dots(asked));
    EXPECT_TRUE(recursion.newest_curves());

    const Vector &last_s = kept.back().first, &last_y = kept.back().second;
    Matrix h = identity(kElements, dot(last_s, last_y) / dot(last_y, last_y));
    for (const auto& [s_i, y_i] : kept) h = updated(h, s_i, y_i);
    machine.combine(kDirection, recursion.direction());
    for (size_t i = 0; i < kElements; ++i)
      EXPECT_NEAR(machine.at(kDirection)[i], -dot(h[i], g), 1e-11) << step << " " << i;
    // A resumed run asks for all products and gets equal bits.
    TwoLoop resumed(kMemory);
    resumed.restore(recursion.slots());
    const auto all = resumed.all_products();
    resumed.take(all, machine.dots(all));
    const auto a = recursion.direction(), b = resumed.direction();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].factor, b[i].factor);
  }
  EXPECT_EQ(recursion.slots().size(), size_t{kMemory});
}

TEST(TwoLoop, APairWithoutCurvatureIsDropped) {
  TwoLoop recursion(2);
  const int slot = recursion.free_slot();
  recursion.add(slot);
  const std::vector<VectorPair> pairs = {
      {s_of(slot), s_of(slot)}, {y_of(slot), y_of(slot)}, {s_of(slot), y_of(slot)}};
  recursion.take(pairs, std::vector<double>{1, 4, -0.5});
  EXPECT_FALSE(recursion.newest_curves());
  recursion.take(pairs, std::vector<double>{1, 4, 1e-11});
  EXPECT_FALSE(recursion.newest_curves());
  recursion.take(pairs, std::vector<double>{1, 4, 0.5});
  EXPECT_TRUE(recursion.newest_curves());
  recursion.drop_newest();
  EXPECT_EQ(recursion.free_slot(), slot);
  ASSERT_EQ(recursion.direction().size(), 1U);
  EXPECT_EQ(recursion.direction().front().factor, -1);
}

// Each function has φ'(0) < 0 and a minimum at a known place.
struct LineCase {
  const char* name;
  std::function<double(double)> value, slope;
};

std::vector<LineCase> line_cases() {
  return {
      {"parabola", [](double t) { return (t - 3) * (t - 3); }, [](double t) { return 2 * (t - 3); }},
      {"far minimum", [](double t) { return (t - 1e4) * (t - 1e4); }, [](double t) { return 2 * (t - 1e4); }},
      {"near minimum", [](double t) { return (t - 1e-6) * (t - 1e-6); },
       [](double t) { return 2 * (t - 1e-6); }},
      {"Moré and Thuente 1", [](double t) { return -t / (t * t + 2); },
       [](double t) { return (t * t - 2) / ((t * t + 2) * (t * t + 2)); }},
      {"flat beginning", [](double t) { return std::pow(t + 0.004, 5) - 2 * std::pow(t + 0.004, 4); },
       [](double t) { return 5 * std::pow(t + 0.004, 4) - 8 * std::pow(t + 0.004, 3); }},
      {"wall", [](double t) { return t < 2 ? std::log(2 - t) - 2 * t : std::nan(""); },
       [](double t) { return t < 2 ? -1 / (2 - t) - 2 : std::nan(""); }},
      {"waves", [](double t) { return 0.05 * t * t - std::sin(t); },
       [](double t) { return 0.1 * t - std::cos(t); }}};
}

TEST(LineSearch, FindsStepsWithBothConditions) {
  for (const double curvature : {0.9, 0.1}) {
    for (const LineCase& c : line_cases()) {
      if (std::string(c.name) == "wall") continue;  // has no such step
      for (const double first : {1e-6, 1.0, 100.0}) {
        WolfeOptions options;
        options.curvature = curvature;
        int calls = 0;
        double last = 0;
        const LineResult result = wolfe_search({0, c.value(0), c.slope(0)}, first, options, [&](double t) {
          ++calls;
          last = t;
          return LinePoint{t, c.value(t), c.slope(t)};
        });
        SCOPED_TRACE(
            fmt::format("{} from {} with c2 = {}: t = {}", c.name, first, curvature, result.point.t));
        ASSERT_TRUE(result.found && result.strong);
        const double t = result.point.t;
        EXPECT_EQ(t, last) << "the accepted point is the one that was evaluated last";
        EXPECT_GT(t, 0);
        EXPECT_LE(c.value(t), c.value(0) + options.decrease * t * c.slope(0));
        EXPECT_LE(std::abs(c.slope(t)), curvature * std::abs(c.slope(0)));
        EXPECT_LE(calls, options.evaluations);
      }
    }
  }
}

TEST(LineSearch, ComesBackFromWhatIsNotFinite) {
  const LineCase wall = line_cases()[5];
  WolfeOptions options;
  double last = 0;
  const auto evaluate = [&](double t) {
    last = t;
    return LinePoint{t, wall.value(t), wall.slope(t)};
  };
  const LineResult result = wolfe_search({0, wall.value(0), wall.slope(0)}, 1024, options, evaluate);
  ASSERT_TRUE(result.found);
  EXPECT_FALSE(result.strong);  // the slope grows towards the wall
  EXPECT_LT(result.point.t, 2);
  EXPECT_EQ(result.point.t, last);
}

TEST(LineSearch, SaysThatNoStepGoesDown) {
  const LineResult result = wolfe_search({0, 1, -1}, 1, {}, [](double t) { return LinePoint{t, 1 + t, 1}; });
  EXPECT_FALSE(result.found);
  EXPECT_EQ(result.point.t, 0);
}

// Where rounding hides the decrease, the slopes decide (Hager and Zhang).
TEST(LineSearch, GoesOnBelowTheRoundingOfTheValue) {
  const double scale = 1e-18;
  const auto at = [&](double t) {
    return LinePoint{t, 1.0 + scale * (t - 1) * (t - 1), 2 * scale * (t - 1)};
  };
  const LineResult result = wolfe_search(at(0), 0.9, {}, at);
  EXPECT_TRUE(result.found && result.strong);
  // The value seems to rise. The condition on the slope, φ'(t) ≤ (2 c₁ − 1) φ'(0), holds for t ≤ 1.4.
  const auto rising = [&](double t) { return LinePoint{t, std::nextafter(1.0, 2.0), 2 * scale * (t - 1)}; };
  WolfeOptions options;
  options.decrease = 0.3;
  const LineResult accepted = wolfe_search(at(0), 1.2, options, rising);
  EXPECT_TRUE(accepted.found && accepted.strong);
  EXPECT_EQ(accepted.point.t, 1.2);
  const LineResult narrowed = wolfe_search(at(0), 1.5, options, rising);
  EXPECT_TRUE(narrowed.found);
  EXPECT_LE(narrowed.point.t, 1.4);
  options.rounding = 0;
  EXPECT_FALSE(wolfe_search(at(0), 1.2, options, rising).found);
}

// ½ xᵀ A x − bᵀ x with a positive definite A, and its minimum by elimination.
struct Quadratic {
  Matrix a;
  Vector b;
  explicit Quadratic(size_t n) : a(identity(n, 0)), b(n, 0) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j)
        for (size_t k = 0; k < n; ++k) a[i][j] += number(i, k, 9) * number(j, k, 9);
      a[i][i] += 0.1;
      b[i] = number(i, 0, 8);
    }
  }
  double operator()(const Vector& x, Vector& gradient) const {
    double value = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const double row = dot(a[i], x);
      gradient[i] = row - b[i];
      value += x[i] * (row / 2 - b[i]);
    }
    return value;
  }
  Vector minimum() const {
    Matrix m = a;
    Vector r = b;
    for (size_t i = 0; i < r.size(); ++i) {
      for (size_t k = i + 1; k < r.size(); ++k) {
        const double f = m[k][i] / m[i][i];
        for (size_t j = i; j < r.size(); ++j) m[k][j] -= f * m[i][j];
        r[k] -= f * r[i];
      }
    }
    for (size_t i = r.size(); i-- > 0;) {
      for (size_t j = i + 1; j < r.size(); ++j) r[i] -= m[i][j] * r[j];
      r[i] /= m[i][i];
    }
    return r;
  }
};

TEST(Minimize, FindsTheMinimumOfAQuadratic) {
  for (const int memory : {1, 3, 10}) {
    const Quadratic f(12);
    NaiveMachine machine(12, f);
    MinimizeState state;
    MinimizeOptions options;
    options.memory = memory, options.tolerance = 1e-10;
    EXPECT_EQ(minimize(machine, options, state, {}), MinimizeEnd::kConverged) << memory;
    const Vector exact = f.minimum();
    for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(machine.at(kPoint)[i], exact[i], 1e-8);
    EXPECT_EQ(state.evaluations, machine.evaluations);
    EXPECT_LT(state.iterations, memory == 10 ? 80 : 500);
  }
}

TEST(Minimize, FindsTheMinimumOfRosenbrock) {
  NaiveMachine machine(2, [](const Vector& x, Vector& g) {
    const double a = 1 - x[0], b = x[1] - x[0] * x[0];
    g[0] = -2 * a - 400 * x[0] * b;
    g[1] = 200 * b;
    return a * a + 100 * b * b;
  });
  MinimizeState state;
  EXPECT_EQ(minimize(machine, {}, state, {}), MinimizeEnd::kConverged);
  EXPECT_NEAR(machine.at(kPoint)[0], 1, 1e-7);
  EXPECT_NEAR(machine.at(kPoint)[1], 1, 1e-7);
  EXPECT_LT(state.iterations, 60);
}

TEST(Minimize, StopsWhereItIsTold) {
  const Quadratic f(12);
  const auto run = [&](MinimizeOptions options, int64_t most) {
    NaiveMachine machine(12, f);
    MinimizeState state;
    return std::pair(minimize(machine, options, state,
                              [&](const MinimizeStep& step) { return step.state.iterations < most; }),
                     state.iterations);
  };
  MinimizeOptions few;
  few.max_iterations = 3;
  EXPECT_EQ(run(few, 100), std::pair(MinimizeEnd::kIterations, int64_t{3}));
  EXPECT_EQ(run({}, 2), std::pair(MinimizeEnd::kStopped, int64_t{2}));
  MinimizeOptions exact;
  exact.tolerance = 0;  // rounding ends the loop
  EXPECT_EQ(run(exact, 1000).first, MinimizeEnd::kNoDecrease);
}

TEST(Minimize, ResumesWithEqualBits) {
  const Quadratic f(12);
  NaiveMachine whole(12, f), parts(12, f);
  MinimizeOptions options;
  MinimizeState a, b;
  minimize(whole, options, a, {});
  minimize(parts, options, b, [](const MinimizeStep& step) { return step.state.iterations < 7; });
  EXPECT_EQ(b.iterations, 7);
  minimize(parts, options, b, {});
  EXPECT_EQ(whole.at(kPoint), parts.at(kPoint));
  EXPECT_EQ(a.iterations, b.iterations);
  EXPECT_EQ(a.evaluations, b.evaluations);
  EXPECT_EQ(a.objective, b.objective);
}

// The state holds all that tells when the loop ends, so that a restart of an ended loop does nothing.
TEST(Minimize, ResumesWithEqualBitsAfterEachIterationUntilRoundingEndsIt) {
  const Quadratic f(12);
  NaiveMachine whole(12, f), parts(12, f);
  MinimizeOptions options;
  options.tolerance = 0;
  MinimizeState a, b;
  EXPECT_EQ(minimize(whole, options, a, {}), MinimizeEnd::kNoDecrease);
  int calls = 0;
  while (minimize(parts, options, b, [](const MinimizeStep&) { return false; }) == MinimizeEnd::kStopped) {
    ASSERT_LT(++calls, 10'000);
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(whole.at(kPoint), parts.at(kPoint));
    EXPECT_EQ(a.iterations, b.iterations);
    EXPECT_EQ(a.evaluations, b.evaluations);
    EXPECT_EQ(minimize(parts, options, b, {}), MinimizeEnd::kNoDecrease);
  }
  options.tolerance = 1e-6;  // a looser bound than the one that was missed
  EXPECT_EQ(minimize(parts, options, b, {}), MinimizeEnd::kConverged);
}

// A gradient that does not belong to the objective promises a decrease that no step gives.
TEST(Minimize, SaysThatNoStepGoesDown) {
  NaiveMachine machine(3, [](const Vector& x, Vector& g) {
    g.assign(x.size(), -1);
    return 1 + std::abs(x[0]) + std::abs(x[1]) + std::abs(x[2]);
  });
  MinimizeState state;
  EXPECT_EQ(minimize(machine, {}, state, {}), MinimizeEnd::kNoStep);
  EXPECT_EQ(state.iterations, 0);
  EXPECT_FALSE(state.exhausted);
}

TEST(Minimize, AnObjectiveThatIsNotFiniteIsRefused) {
  NaiveMachine machine(2, [](const Vector&, Vector&) { return std::nan(""); });
  MinimizeState state;
  EXPECT_THROW(minimize(machine, {}, state, {}), Error);
}

TEST(GradientFold, AddsInTheOrderOfPortions) {
  // The sum of these numbers depends on the order.
  const std::vector<double> values = {1e16, 1, -1e16, 1, 3};
  double expected = 0;
  for (const double x : values) expected += x;
  std::vector<int> order = {0, 1, 2, 3, 4};
  do {
    GradientFold fold;
    fold.begin(5, 1);
    for (const int portion : order) {
      EXPECT_FALSE(fold.done());
      fold.add(portion, {values[static_cast<size_t>(portion)]});
    }
    EXPECT_TRUE(fold.done());
    EXPECT_EQ(fold.sum().front(), expected);
  } while (std::next_permutation(order.begin(), order.end()));
  GradientFold fold;
  fold.begin(2, 1);
  fold.add(1, {1});
  EXPECT_THROW(fold.add(1, {1}), CommError);
  EXPECT_THROW(fold.add(2, {1}), CommError);
  EXPECT_THROW(fold.add(0, {1, 2}), CommError);
  fold.add(0, {1});
  EXPECT_THROW(fold.add(0, {1}), CommError);
}

}  // namespace
}  // namespace starling
