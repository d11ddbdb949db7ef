// The report of `starling data inspect` about a data source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/net/security/data_security.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Facts about a data source.
struct DataReport {
  std::string source;
  bool text = false;
  bool tensors = false;  // samples are neither text nor images with classes: nothing below `classes` is known
  int64_t train_samples = 0;
  int64_t test_samples = 0;          // 0 if there is no test part
  std::vector<int64_t> input_shape;  // {channels, height, width} or {tokens}
  int64_t classes = 0;               // of text: size of the vocabulary
  std::vector<std::string> class_names;
  std::string vocabulary;  // text
  int64_t counted = 0;     // number of training samples that the histogram, mean and std come from
  std::vector<int64_t> label_histogram;  // images: samples per class; text: occurrences per character
  std::vector<double> mean;              // of images: per channel, of pixels in 0 … 1
  std::vector<double> std;
  int64_t preview_label = -1;  // class of the sample in `preview`
  std::string preview;         // images: a drawing of training sample 0 in lines; text: the first characters
};

// Reads up to 100,000 evenly spread training samples without augmentation and normalization. Every sample
// that is read is decoded, so damage is found. Errors: those of open_data and Source::read.
DataReport inspect_data(const DataSpec& spec, uint64_t seed, int64_t text_tokens,
                        DataSecurity security = DataSecurity::kNone);

// Returns lines for a terminal.
std::string to_text(const DataReport& report);
// Returns one JSON object on one line.
std::string to_json(const DataReport& report);

}  // namespace starling
