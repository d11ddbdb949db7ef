// Writes a generated data set to disk (`starling data make`), in the formats that data.source reads.
#pragma once

#include <cstdint>
#include <string>

#include "starling/spec/run_spec.h"

namespace starling {

// spec.source = digits: the four files of MNIST (read them by idx:DIR; the pixels are those of `digits` with
// this seed). spec.source = grammar: grammar.txt, a paragraph a sample, those of the test part last
// (text:DIR/grammar.txt). spec.samples and spec.test_samples as in open_data. Makes the folder; replaces the
// files. gzip: of the IDX files. Errors: ConfigError for other sources, DataError for what cannot be written.
void make_data(const DataSpec& spec, uint64_t seed, const std::string& out_dir, bool gzip = false);

}  // namespace starling
