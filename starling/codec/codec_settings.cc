#include "starling/codec/codec_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void refuse_setting(const CodecSpec& spec, const std::string& key, const std::string& allowed) {
  throw ConfigError("--codec", fmt::format("codec {}: {} = '{}' is not {}", name_of(spec), key,
                                           spec.settings.at(key), allowed));
}

// Returns the number, or NaN if the text is no number.
double number_in(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  return fault == std::errc{} && stop == end ? number : std::nan("");
}

}  // namespace

double number_setting(const CodecSpec& spec, const std::string& key, double otherwise, double least,
                      double most) {
  const auto found = spec.settings.find(key);
  if (found == spec.settings.end()) return otherwise;
  const double number = number_in(found->second);
  if (!(number >= least && number <= most))
    refuse_setting(spec, key, fmt::format("a number from {} to {}", least, most));
  return number;
}

int whole_setting(const CodecSpec& spec, const std::string& key, int otherwise, int least, int most) {
  const auto found = spec.settings.find(key);
  if (found == spec.settings.end()) return otherwise;
  const double number = number_in(found->second);
  if (!(number >= least && number <= most && number == std::floor(number)))
    refuse_setting(spec, key, fmt::format("a whole number from {} to {}", least, most));
  return static_cast<int>(number);
}

size_t word_setting(const CodecSpec& spec, const std::string& key, const std::vector<std::string>& words) {
  const auto found = spec.settings.find(key);
  if (found == spec.settings.end()) return 0;
  const auto word = std::find(words.begin(), words.end(), found->second);
  if (word == words.end()) refuse_setting(spec, key, fmt::format("one of {}", fmt::join(words, ", ")));
  return static_cast<size_t>(word - words.begin());
}

}  // namespace starling
