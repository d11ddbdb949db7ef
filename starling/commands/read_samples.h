// The samples of commands that fit a logistic regression: `lbfgs` and `mcmc`.
#pragma once

#include <optional>
#include <string>

#include "starling/lbfgs/samples.h"

namespace starling {

// Where a command finds its samples.
struct SampleSource {
  std::string data;                // a CSV file, idx:DIR or cifar-bin:DIR; empty: generated samples
  std::string label = "last";      // the column of the label in a CSV file: first or last
  std::optional<double> positive;  // the label that becomes 1, while all others become 0
};

// Reads samples, or generates them. Errors: those of starling/lbfgs/samples.h, and of the readers of images.
SampleTable read_samples(const SampleSource& source, const GeneratedSamples& generated);

// Throws ConfigError for sources of training that have no samples for a logistic regression. command: its
// name, for the message.
void check_sample_source(const std::string& data, const std::string& command);
// Throws ConfigError if `label` names no column.
void check_label_column(const std::string& label);

}  // namespace starling
