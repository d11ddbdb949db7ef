// Several threads update one range without locks. Where sums of floating-point numbers are exact, or where no
// two threads update the same element, the result is known to the bit. The preset tsan reports data races.
#include "starling/optim/hogwild_update.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "starling/optim/update_rule.h"

namespace starling {
namespace {

constexpr int kThreads = 4;

// Calls task(0) … task(kThreads - 1) at once.
void at_once(const std::function<void(int)>& task) {
  std::atomic<int> missing = kThreads;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      --missing;
      while (missing > 0) std::this_thread::yield();
      task(t);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::vector<T> normal_values(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(n);
  for (T& v : values) v = normal(random);
  return values;
}

template <typename T>
HogwildUpdate<T> update_of(std::vector<T>& x, const std::vector<T>& gradient, HogwildForm form, double lr) {
  HogwildUpdate<T> update;
  update.shared = x.data();
  update.gradient = gradient.data();
  update.count = x.size();
  update.lr = lr;
  update.form = form;
  return update;
}

template <typename T>
class HogwildTypes : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(HogwildTypes, Types);

TYPED_TEST(HogwildTypes, OneThreadGetsTheBitsOfSgd) {
  using T = TypeParam;
  constexpr size_t kCount = 777;
  const std::vector<T> gradient = normal_values<T>(kCount, 1), initial = normal_values<T>(kCount, 2);
  for (const double decay : {0.0, 0.3}) {
    OptimizerSpec spec;
    spec.momentum = 0;
    spec.weight_decay = decay;
    std::vector<T> expected = initial, x = initial;
    const T* sources[] = {gradient.data()};
    UpdateArgs<T, T> args;
    args.gradients = sources;
    args.gradient_scale = 0.7;
    args.parameter = args.parameter_out = expected.data();
    args.count = kCount;
    make_update_rule(spec).apply(args, 0.05, 1);

    HogwildUpdate<T> update = update_of(x, gradient, HogwildForm::kDense, 0.05);
    update.gradient_scale = 0.7;
    update.weight_decay = decay;
    update.read = initial.data();
    const HogwildCounts counts = hogwild_update(update);
    EXPECT_EQ(counts.touched, kCount);
    EXPECT_EQ(counts.retries, 0u);
    EXPECT_EQ(x, expected) << decay;
    if (decay > 0) continue;
    x = initial;
    update.form = HogwildForm::kSparse;
    hogwild_update(update);
    EXPECT_EQ(x, expected);
  }
}

TYPED_TEST(HogwildTypes, TheSparseFormLeavesOutWhatHasNoGradient) {
  using T = TypeParam;
  std::vector<T> x = {1, 2, 3, 4}, read = x;
  const std::vector<T> gradient = {0, T(0.5), T(-0.0), -1};
  HogwildUpdate<T> update = update_of(x, gradient, HogwildForm::kSparse, 0.5);
  update.weight_decay = 1;
  update.read = read.data();
  EXPECT_EQ(hogwild_update(update).touched, 2u);
  EXPECT_EQ(x, (std::vector<T>{1, T(1.75), 3, T(4.5)}));
  x = read;
  update.form = HogwildForm::kDense;
  EXPECT_EQ(hogwild_update(update).touched, 4u);
  EXPECT_EQ(x, (std::vector<T>{T(0.5), T(0.75), T(1.5), T(2.5)}));
}

// The gradients and the rate are such that every sum is exact, so the order of the additions does not matter.
// A lost addition changes the sum. On a busy machine the threads may run one after another. So rounds follow
// until an addition was retried, but not more than kRounds.
TYPED_TEST(HogwildTypes, NoAdditionIsLost) {
  using T = TypeParam;
  constexpr size_t kCount = 24;  // few elements, so that the threads meet often
  constexpr int kUpdates = 50'000, kRounds = 20;
  for (const HogwildForm form : {HogwildForm::kDense, HogwildForm::kSparse}) {
    const uint64_t each = form == HogwildForm::kDense ? kCount : kCount / 3 * 2;
    uint64_t retries = 0;
    for (int round = 0; round < kRounds && retries == 0; ++round) {
      std::vector<T> x(kCount, 0);
      std::vector<HogwildCounts> counts(kThreads);
      at_once([&](int t) {
        std::vector<T> gradient(kCount);
        for (size_t i = 0; i < kCount; ++i) gradient[i] = static_cast<T>((t + 1) * static_cast<int>(i % 3));
        const HogwildUpdate<T> update = update_of(x, gradient, form, 0.5);
        HogwildCounts& own = counts[static_cast<size_t>(t)];
        for (int u = 0; u < kUpdates; ++u) {
          const HogwildCounts one = hogwild_update(update);
          own.touched += one.touched;
          own.retries += one.retries;
        }
      });
      for (const HogwildCounts& c : counts) {
        EXPECT_EQ(c.touched, each * kUpdates);
        retries += c.retries;
      }
      for (size_t i = 0; i < kCount; ++i) {
        const int sum = (1 + 2 + 3 + 4) * static_cast<int>(i % 3) * kUpdates;
        EXPECT_EQ(x[i], static_cast<T>(-0.5 * sum)) << i;
      }
    }
  }
}

// Each thread has features of its own: its gradients are 0 elsewhere. The elements lie side by side, so the
// threads share cache lines.
TYPED_TEST(HogwildTypes, DisjointFeaturesGiveTheBitsOfOneThread) {
  using T = TypeParam;
  constexpr size_t kCount = 203;
  constexpr int kUpdates = 500;
  const std::vector<T> initial = normal_values<T>(kCount, 5);
  const auto step = [&](std::vector<T>& x, int t, int u, HogwildForm form) {
    std::vector<T> read(kCount), gradient = normal_values<T>(kCount, static_cast<unsigned>(100 * u + t));
    hogwild_read(x.data(), read.data(), kCount);
    for (size_t i = 0; i < kCount; ++i)
      gradient[i] = i % kThreads == static_cast<size_t>(t) ? read[i] - gradient[i] : 0;
    hogwild_update(update_of(x, gradient, form, 0.1));
  };
  std::vector<T> expected = initial;
  for (int t = 0; t < kThreads; ++t)
    for (int u = 0; u < kUpdates; ++u) step(expected, t, u, HogwildForm::kDense);
  for (const HogwildForm form : {HogwildForm::kDense, HogwildForm::kSparse}) {
    std::vector<T> x = initial;
    at_once([&](int t) {
      for (int u = 0; u < kUpdates; ++u) step(x, t, u, form);
    });
    EXPECT_EQ(x, expected);
  }
}

// Each read element is a value that the additions so far make, and no element goes back to an earlier value.
TYPED_TEST(HogwildTypes, ReadsSeeWholeValues) {
  using T = TypeParam;
  constexpr size_t kCount = 16;
  constexpr int kUpdates = 5000;
  std::vector<T> x(kCount, 0);
  const std::vector<T> gradient(kCount, -1);
  std::atomic<int> wrong = 0;
  at_once([&](int) {
    std::vector<T> read(kCount), before(kCount, 0);
    for (int u = 0; u < kUpdates; ++u) {
      hogwild_read(x.data(), read.data(), kCount);
      for (size_t i = 0; i < kCount; ++i) {
        const bool possible = read[i] == std::floor(read[i]) && read[i] <= kThreads * kUpdates;
        if (!possible || read[i] < before[i] || read[i] < static_cast<T>(u)) ++wrong;
      }
      before = read;
      hogwild_update(update_of(x, gradient, HogwildForm::kDense, 1));
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(x, std::vector<T>(kCount, kThreads * kUpdates));
}

}  // namespace
}  // namespace starling
