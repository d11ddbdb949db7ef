// Reads the settings of a codec's word that have no field in CodecSpec.
#pragma once

#include <string>
#include <vector>

#include "starling/codec/codec_spec.h"

namespace starling {

// Returns the number of the setting `key`, or `otherwise` if the word does not have it. Errors: ConfigError
// unless the number is from `least` to `most`.
double number_setting(const CodecSpec& spec, const std::string& key, double otherwise, double least,
                      double most);
// As number_setting(), but only for whole numbers.
int whole_setting(const CodecSpec& spec, const std::string& key, int otherwise, int least, int most);
// Returns the index of the setting `key` in `words`, or 0 if the word does not have it. Errors: ConfigError
// for any other text.
size_t word_setting(const CodecSpec& spec, const std::string& key, const std::vector<std::string>& words);

}  // namespace starling
