// The samples of a sparse regression. Each rank holds a range of the samples, with all features, and stores
// one feature after another.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/lbfgs/samples.h"

namespace starling {

// The samples of one rank.
struct LassoData {
  std::string name;             // for messages
  int64_t samples = 0;          // over all ranks
  int64_t features = 0;         // d
  int64_t first = 0;            // the first sample of this rank
  int64_t count = 0;            // samples of this rank
  std::vector<double> columns;  // feature 0 of all samples of this rank, then feature 1, …
  std::vector<double> targets;  // y of the samples of this rank

  // Returns a feature of all samples of this rank.
  const double* column(int64_t feature) const { return columns.data() + feature * count; }
};

// The range of samples that a rank holds.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
};
// Returns part `rank` of `samples` samples that are cut into `ranks` ranges.
SampleRange samples_of_rank(int64_t samples, int rank, int ranks);

// Reads a file. The last column is y, or the first one. The content of the file determines the format:
//
// - A .npy file of NumPy with a matrix in row-major order, of fp64 or fp32 numbers. A rank reads its rows
//   only.
// - A text file as read_csv_samples() describes it.
//
// Errors: DataError that names the file and, in a text, the line.
LassoData read_lasso_data(const std::string& path, LabelColumn label, int rank, int ranks);

// The settings of generated samples. Features of a block have pairwise the correlation `correlation`, and
// features of different blocks have none. y is a sum of some features, plus noise.
struct GeneratedBlocks {
  int64_t samples = 400;
  int64_t features = 2000;
  int64_t block = 50;        // features per block
  double correlation = 0.9;  // 0 to 1
  int64_t nonzeros = 40;     // features with a weight in y, at most `features`
  double noise = 1;          // standard deviation
  uint64_t seed = 0;
};
// Makes the samples of a rank. Each number is a function of (seed, sample, feature), and not of the number of
// ranks. Errors: ConfigError if a size is below 1, or if the numbers do not fit.
LassoData make_lasso_blocks(const GeneratedBlocks& spec, int rank, int ranks);

// Throws DataError if a rank has no sample, if there is no feature, or if a number is not finite.
void check_lasso_data(const LassoData& data);
// Returns a hash of this rank's numbers. The sum over the ranks does not depend on the division into ranks.
uint64_t hash_of(const LassoData& data);

}  // namespace starling
