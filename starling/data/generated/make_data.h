// Writes a generated data set to disk (`starling data make`), in formats that data.source reads.
#pragma once

#include <cstdint>
#include <string>

#include "starling/spec/run_spec.h"

namespace starling {

// The options of make_data().
struct MakeDataOptions {
  bool gzip = false;     // compress the IDX files
  bool replace = false;  // replace existing files
};

// Writes the data set that spec.source names into `out_dir`, which the function makes. For digits, it writes
// the four files of MNIST with the pixels of `digits` for this seed; read them as idx:DIR. For grammar, it
// writes grammar.txt with one paragraph per sample, the test part last; read it as text:DIR/grammar.txt.
// spec.samples and spec.test_samples have their meaning in open_data. Errors: ConfigError for other sources
// and, before anything is written, for a file that exists if it must not be replaced; DataError if a file
// cannot be written.
void make_data(const DataSpec& spec, uint64_t seed, const std::string& out_dir,
               const MakeDataOptions& options = {});

}  // namespace starling
