// What `starling data inspect` shows of a data source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/net/data_security.h"
#include "starling/spec/run_spec.h"

namespace starling {

struct DataReport {
  std::string source;
  bool text = false;
  int64_t train_samples = 0;
  int64_t test_samples = 0;          // 0: no test part
  std::vector<int64_t> input_shape;  // {channels, height, width} or {tokens}
  int64_t classes = 0;               // text: size of the vocabulary
  std::vector<std::string> class_names;
  std::string vocabulary;                // text
  int64_t counted = 0;                   // training samples that the histogram, mean and std come from
  std::vector<int64_t> label_histogram;  // images: samples a class; text: occurrences a character
  std::vector<double> mean;              // images, a channel, of pixels in 0 … 1
  std::vector<double> std;
  int64_t preview_label = -1;  // class of the sample drawn
  std::string preview;         // images: a drawing of training sample 0, lines; text: the first characters
};

// Reads up to 100,000 training samples, evenly spread (all where there are fewer), without augmentation and
// normalisation: every sample that is read is decoded, so damage is found. Errors: those of open_data and
// read.
DataReport inspect_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens,
                        DataSecurity security = DataSecurity::kNone);

// Lines for a terminal.
std::string to_text(const DataReport& report);
// One JSON object on one line.
std::string to_json(const DataReport& report);

}  // namespace starling
