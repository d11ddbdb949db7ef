// Compares the kernels of lowrank with naive ones, its approximation with an exact singular value
// decomposition, and PowerSGD with the equations of its paper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/low_rank_kernels.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/matrix_reference.h"
#include "starling/codec/power_sgd.h"

namespace starling {
namespace {

// Returns the singular values in descending order, by one-sided Jacobi rotations (Hestenes).
std::vector<double> singular_values(Matrix a) {
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (size_t p = 0; p < a.cols; ++p) {
      for (size_t q = p + 1; q < a.cols; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (size_t i = 0; i < a.rows; ++i) {
          pp += a(i, p) * a(i, p);
          qq += a(i, q) * a(i, q);
          pq += a(i, p) * a(i, q);
        }
        if (std::fabs(pq) < 1e-15 * std::sqrt(pp * qq) || pq == 0) continue;
        const double angle = 0.5 * std::atan2(2 * pq, pp - qq);
        for (size_t i = 0; i < a.rows; ++i) {
          const double x = a(i, p), y = a(i, q);
          a(i, p) = std::cos(angle) * x + std::sin(angle) * y;
          a(i, q) = std::cos(angle) * y - std::sin(angle) * x;
        }
      }
    }
  }
  std::vector<double> values;
  for (size_t j = 0; j < a.cols; ++j) {
    double square = 0;
    for (size_t i = 0; i < a.rows; ++i) square += a(i, j) * a(i, j);
    values.push_back(std::sqrt(square));
  }
  std::sort(values.rbegin(), values.rend());
  return values;
}

// Returns a matrix whose singular values are near decay^i.
Values decaying(size_t rows, size_t cols, double decay, unsigned seed) {
  const Matrix u = orthonormal_columns(matrix_of(test_values(rows * cols, seed), rows, cols));
  const Matrix v = orthonormal_columns(matrix_of(test_values(cols * cols, seed + 1), cols, cols));
  Matrix scaled = u;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j) scaled(i, j) *= std::pow(decay, static_cast<double>(j));
  const Matrix m = product(scaled, transposed(v));
  return Values(m.at.begin(), m.at.end());
}

double best_error(const Values& x, size_t rows, size_t cols, size_t rank) {
  const auto s = singular_values(matrix_of(x, rows, cols));
  double square = 0;
  for (size_t i = rank; i < s.size(); ++i) square += s[i] * s[i];
  return std::sqrt(square);
}

TEST(LowRankKernels, EqualNaiveOnes) {
  constexpr size_t kRows = 37, kCols = 51;
  constexpr int kRank = 3;
  const Values m = test_values(kRows * kCols, 1), q = test_values(kRank * kCols, 2);
  Values p(kRank * kRows), back(kRank * kCols), out(kRows * kCols, 0.5f);
  multiply({m.data(), kRows, kCols}, q.data(), kRank, p.data());
  multiply_transposed({m.data(), kRows, kCols}, p.data(), kRank, back.data());
  add_product(p.data(), q.data(), kRank, -2.0f, out.data(), kRows, kCols);
  const Matrix wide = matrix_of(m, kRows, kCols), qt = matrix_of(q, kRank, kCols);
  const Matrix naive_p = transposed(product(wide, transposed(qt)));
  const Matrix naive_q = product(matrix_of(p, kRank, kRows), wide);
  const Matrix naive_out = product(transposed(matrix_of(p, kRank, kRows)), qt);
  for (size_t i = 0; i < p.size(); ++i) ASSERT_NEAR(p[i], naive_p.at[i], 1e-6);
  for (size_t i = 0; i < back.size(); ++i) ASSERT_NEAR(back[i], naive_q.at[i], 1e-6);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], 0.5 - 2 * naive_out.at[i], 1e-6);
}

TEST(LowRankKernels, OrthonormalizeWhateverTheInput) {
  constexpr size_t kLength = 40;
  constexpr int kRank = 6;
  Values v = test_values(kRank * kLength, 3);
  for (size_t i = 0; i < kLength; ++i) {
    v[kLength + i] = -3 * v[i];  // dependent
    v[2 * kLength + i] = 0;      // zero
    v[3 * kLength + i] = std::numeric_limits<float>::infinity();
    v[4 * kLength + i] = v[i] + 1e-9f * v[5 * kLength + i];  // nearly dependent
  }
  Values again = v;
  orthonormalize(v.data(), kLength, kRank, 9);
  for (size_t a = 0; a < kRank; ++a)
    for (size_t b = 0; b < kRank; ++b) {
      double sum = 0;
      for (size_t i = 0; i < kLength; ++i) sum += double{v[a * kLength + i]} * v[b * kLength + i];
      EXPECT_NEAR(sum, a == b ? 1 : 0, 1e-6) << a << " " << b;
    }
  orthonormalize(again.data(), kLength, kRank, 9);
  EXPECT_EQ(again, v);
}

TEST(Pca, ReachesTheBestApproximation) {
  for (const auto& [rows, cols] : {std::pair<size_t, size_t>{60, 25}, {25, 25}, {40, 12}}) {
    const Values x = decaying(rows, cols, 0.6, 4);
    for (const size_t rank : {1, 2, 4}) {
      const auto codec = make_codec("lowrank:form=pca,rank=" + std::to_string(rank), {{rows, cols}});
      const double error = norm(minus(round_trip(*codec, x), x));
      const double best = best_error(x, rows, cols, rank);
      EXPECT_LT(error, 1.001 * best) << rows << " x " << cols << " rank " << rank;
      EXPECT_GT(error, 0.999 * best);
      EXPECT_EQ(codec->encoded_bytes(x.size()), 4 * rank * (rows + cols));
    }
  }
}

TEST(Pca, AMatrixOfThatRankReturns) {
  const Matrix m = product(matrix_of(test_values(90, 5), 30, 3), matrix_of(test_values(60, 6), 3, 20));
  const Values x(m.at.begin(), m.at.end());
  const auto codec = make_codec("lowrank:form=pca,rank=3", {{30, 20}});
  EXPECT_LT(norm(minus(round_trip(*codec, x), x)), 2e-6 * norm(x));
}

TEST(LowRank, VectorsAndSmallMatricesTravelAsTheyAre) {
  const std::vector<TensorShape> shapes{{30, 20, 0}, {1, 50, 14}, {3, 3, 0}, {0, 7, 0}};
  const Values x = test_values(600 + 64 + 9, 7);
  for (const char* word : {"lowrank:rank=3", "lowrank:rank=3,form=pca"}) {
    const auto codec = make_codec(word, shapes);
    EXPECT_EQ(codec->encoded_bytes(x.size()), 4u * (3 * 50 + 50 + 9));
    const Values out = round_trip(*codec, x);
    EXPECT_TRUE(std::equal(x.begin() + 600, x.begin() + 650, out.begin() + 600));
    EXPECT_EQ(Values(out.begin() + 650, out.begin() + 664), Values(14, 0.0f));
    EXPECT_TRUE(std::equal(x.begin() + 664, x.end(), out.begin() + 664));
  }
  EXPECT_THROW(make_codec("lowrank"), Error);
}

TEST(PowerSgd, TheSameMatrixAgainIsApproximatedAsWellAsBySvd) {
  const Values x = decaying(60, 25, 0.6, 8);
  const auto codec = make_codec("lowrank:rank=3", {{60, 25}});
  const double first = norm(minus(round_trip(*codec, x), x));
  double last = first;
  for (int step = 0; step < 12; ++step) last = norm(minus(round_trip(*codec, x), x));
  const double best = best_error(x, 60, 25, 3);
  EXPECT_GT(first, 1.02 * best);
  EXPECT_LT(last, 1.001 * best);
}

TEST(PowerSgd, ContinuesFromItsState) {
  const std::vector<TensorShape> shapes{{30, 20, 0}, {1, 50, 0}, {16, 16, 0}};
  const auto whole = make_codec("lowrank", shapes), other = make_codec("lowrank", shapes);
  const Values x = test_values(600 + 50 + 256, 9);
  for (int step = 0; step < 3; ++step) round_trip(*whole, x);
  other->load_state(whole->state());
  EXPECT_EQ(round_trip(*other, x), round_trip(*whole, x));
  EXPECT_EQ(whole->state().size(), 2u);
  EXPECT_EQ(whole->state().at("q/2").size(), 32u);
  EXPECT_THROW(other->load_state({}), Error);
  CodecState more = whole->state();
  more["q/1"] = {1};
  EXPECT_THROW(other->load_state(more), Error);
  more = whole->state();
  more["q/2"].pop_back();
  EXPECT_THROW(other->load_state(more), Error);
}

}  // namespace
}  // namespace starling
