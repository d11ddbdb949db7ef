// How the samples of a step are divided among the ranks (data.share).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// The meaning of data.share.
struct BatchShare {
  bool measured = false;      // "auto": the ranks measure their computation
  std::vector<double> parts;  // of the ranks, in any unit; empty: equal parts, or measured ones
};

// Parses "", "auto" or one number per rank between commas ("2,1"). Throws ConfigError for anything else, such
// as a number that is not above 0.
BatchShare parse_batch_share(const std::string& text);

// Returns true if the ranks may have unequal numbers of samples in a step.
bool has_unequal_shares(const RunSpec& spec);

// Returns the least number of samples of a rank in a step: one for each part that a thread computes.
int64_t least_samples(const RunSpec& spec);

}  // namespace starling
