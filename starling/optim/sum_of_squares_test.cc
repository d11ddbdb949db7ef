#include "starling/optim/sum_of_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

namespace starling {
namespace {

std::vector<float> random_values(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x) v = normal(random);
  return x;
}

TEST(SumOfSquares, EqualsTheNaiveSum) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{17}, size_t{1041}, 2 * kSquareChunk + 33}) {
    const auto a = random_values(n, 1), b = random_values(n, 2);
    const float* sources[] = {a.data(), b.data()};
    double expected = 0;
    for (size_t i = 0; i < n; ++i) expected += std::pow(0.5 * static_cast<double>(a[i] + b[i]), 2);
    EXPECT_NEAR(sum_of_squares(sources, 2, 0.5, n), expected, 1e-12 * (1 + expected)) << n;
  }
}

TEST(SumOfSquares, TakesFp64AndBf16) {
  const std::vector<double> x = {3.0, 4.0};
  EXPECT_EQ(sum_of_squares(x.data(), x.size()), 25.0);
  const std::vector<Bf16> y = {to_bf16(3.0f), to_bf16(4.0f)};
  EXPECT_EQ(sum_of_squares(y.data(), y.size()), 25.0);
}

TEST(SumOfSquares, SameBitsForEveryThreadCountAndVectorUnit) {
  const size_t n = 5 * kSquareChunk + 123;
  const auto x = random_values(n, 3);
  const float* sources[] = {x.data()};
  const double expected = sum_of_squares(sources, 1, 1.0, n, Isa::kBaseline);
  for (const Isa isa : supported_isas())
    for (const size_t threads : {1, 2, 3, 4}) {
      std::vector<double> partials(square_chunks(n));
      std::vector<std::thread> workers;
      for (size_t t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
          squares_of_chunks(sources, 1, n, partials.size() * t / threads, partials.size() * (t + 1) / threads,
                            partials.data(), isa);
        });
      for (auto& w : workers) w.join();
      double sum = 0;
      for (const double p : partials) sum += p;
      EXPECT_EQ(sum, expected) << threads << " threads";
    }
}

}  // namespace
}  // namespace starling
