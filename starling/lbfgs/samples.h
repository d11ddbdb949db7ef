// Samples for logistic regression: rows of features with labels 0 and 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace starling {

// All samples of a problem. Every rank holds all of them, because any rank may get any portion.
struct SampleTable {
  std::string name;            // for messages
  int64_t features = 0;        // numbers per sample
  std::vector<double> values;  // features of one sample after another
  std::vector<double> labels;  // one per sample

  // Returns the number of samples.
  int64_t count() const { return static_cast<int64_t>(labels.size()); }
  // Returns the features of a sample.
  const double* row(int64_t sample) const { return values.data() + sample * features; }
};

// Where a line of a CSV file has the label.
enum class LabelColumn { kLast, kFirst };

// Reads a text file with one sample per line. Commas, semicolons, tabs or blanks separate the numbers. The
// first sample determines which of them, in this order. A first line without any number is a heading. Blank
// lines do not count. Errors: DataError that names the file, the line and the column, for an empty field or
// one that is no finite number.
SampleTable read_csv_samples(const std::string& path, LabelColumn label);

// The settings of generated samples.
struct GeneratedSamples {
  int64_t count = 20'000;
  int64_t features = 50;
  uint64_t seed = 0;
};
// Makes samples whose labels are drawn from a logistic model with hidden weights. All numbers are functions
// of (seed, sample, feature). Errors: ConfigError if count or features is below 1, or if both are too large.
SampleTable make_samples(const GeneratedSamples& spec);

// Turns labels into 1 for `positive` and 0 for all other values. Without `positive` the labels stay.
// Then checks the table. Errors: DataError if there is no sample or no feature, or if a feature is not
// finite. DataError also if a label is neither 0 nor 1, if all labels are equal, or if no label is
// `positive`.
void make_binary(SampleTable& table, std::optional<double> positive);

// Returns a hash of all numbers, by which ranks and checkpoints compare tables.
uint64_t hash_of(const SampleTable& table);

}  // namespace starling
