#include "starling/codec/codec_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/suggest.h"

namespace starling {
namespace {

using Words = std::vector<std::string>;

const Words& keys_of(CodecKind kind) {
  static const Words plain{"feedback"}, blocks{"block", "feedback"}, threshold{"tau", "feedback"},
      low_rank{"form", "rank", "iterations", "feedback"}, prune{"keep", "feedback"};
  switch (kind) {
    case CodecKind::kInt8:
    case CodecKind::kOneBit:
      return blocks;
    case CodecKind::kThreshold:
      return threshold;
    case CodecKind::kLowRank:
      return low_rank;
    case CodecKind::kPrune:
      return prune;
    default:
      return plain;
  }
}

bool feedback_by_default(const CodecSpec& spec) {
  return spec.kind == CodecKind::kOneBit || spec.kind == CodecKind::kThreshold ||
         spec.kind == CodecKind::kPrune ||
         (spec.kind == CodecKind::kLowRank && spec.form == LowRankForm::kPowerSgd);
}

// One "key=value" of a word, and where it stands.
struct Setting {
  const std::string& where;
  const std::string& codec;
  std::string key, value;

  [[noreturn]] void refuse(const std::string& allowed) const {
    throw ConfigError(where, fmt::format("codec {}: {} = '{}' is not {}", codec, key, value, allowed));
  }
  double number(double least, double most, const std::string& allowed) const {
    double number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, fault] = std::from_chars(value.data(), end, number);
    if (fault != std::errc{} || stop != end || !(number >= least && number <= most)) refuse(allowed);
    return number;
  }
  long integer(long least, long most) const {
    const std::string allowed = fmt::format("a whole number from {} to {}", least, most);
    const double n = number(static_cast<double>(least), static_cast<double>(most), allowed);
    if (n != std::floor(n)) refuse(allowed);
    return static_cast<long>(n);
  }
  // The index of the value in `words`.
  size_t choice(const Words& words) const {
    const auto found = std::find(words.begin(), words.end(), value);
    if (found == words.end()) refuse(fmt::format("one of {}", fmt::join(words, ", ")));
    return static_cast<size_t>(found - words.begin());
  }
};

void apply(const Setting& setting, CodecSpec& spec) {
  if (setting.key == "block") {
    spec.block = static_cast<size_t>(setting.integer(8, 1 << 24));
    if (spec.block % 8 != 0) setting.refuse("a multiple of 8");
  } else if (setting.key == "tau") {
    spec.tau = setting.number(1e-30, 1e30, "a number above 0 (1e-30 to 1e30)");
  } else if (setting.key == "keep") {
    spec.keep = setting.number(1e-9, 1, "a part of the elements, above 0 and at most 1");
  } else if (setting.key == "rank") {
    spec.rank = static_cast<int>(setting.integer(1, 1024));
  } else if (setting.key == "iterations") {
    spec.iterations = static_cast<int>(setting.integer(1, 1000));
  } else if (setting.key == "form") {
    spec.form = setting.choice({"power-sgd", "pca"}) == 0 ? LowRankForm::kPowerSgd : LowRankForm::kPca;
  } else {
    spec.error_feedback = setting.choice({"off", "on"}) == 1;
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// " (did you mean 'x'?)", or nothing.
std::string hint(const std::string& word, const Words& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near);
}

}  // namespace

const Words& codec_names() {
  static const Words names{"none", "fp16", "bf16", "int8", "1bit", "threshold", "lowrank", "prune"};
  return names;
}

const std::string& name_of(CodecKind kind) {
  return codec_names()[static_cast<size_t>(kind)];
}

CodecSpec parse_codec(const std::string& word, const std::string& where) {
  const size_t colon = word.find(':');
  const std::string name = word.substr(0, colon);
  const auto found = std::find(codec_names().begin(), codec_names().end(), name);
  if (found == codec_names().end()) {
    throw ConfigError(where, fmt::format("there is no codec '{}'{}; the codecs are {}", name,
                                         hint(name, codec_names()), fmt::join(codec_names(), ", ")));
  }
  CodecSpec spec;
  spec.kind = static_cast<CodecKind>(found - codec_names().begin());
  const Words& keys = keys_of(spec.kind);
  std::set<std::string> seen;
  if (colon != std::string::npos) {
    for (const std::string& part : split(word.substr(colon + 1), ',')) {
      const size_t equals = part.find('=');
      const std::string key = part.substr(0, equals);
      if (equals == std::string::npos || std::find(keys.begin(), keys.end(), key) == keys.end()) {
        throw ConfigError(where, fmt::format("codec {}: '{}' is no setting of it{}; write KEY=VALUE with {}",
                                             name, part, hint(key, keys), fmt::join(keys, ", ")));
      }
      if (!seen.insert(key).second) {
        throw ConfigError(where, fmt::format("codec {}: {} is given twice", name, key));
      }
      apply({where, name, key, part.substr(equals + 1)}, spec);
    }
  }
  if (!seen.contains("feedback")) spec.error_feedback = feedback_by_default(spec);
  return spec;
}

CodecSpec parse_weight_codec(const std::string& word, const std::string& where) {
  CodecSpec spec = parse_codec(word, where);
  if (spec.kind == CodecKind::kLowRank && word.find("form=") == std::string::npos)
    spec.form = LowRankForm::kPca;
  if (spec.kind == CodecKind::kThreshold ||
      (spec.kind == CodecKind::kLowRank && spec.form == LowRankForm::kPowerSgd)) {
    throw ConfigError(where, fmt::format("{} codes changes, from one message to the next, and weights travel "
                                         "whole: use fp16, bf16, int8, 1bit, lowrank:form=pca or prune",
                                         word));
  }
  spec.error_feedback = false;
  return spec;
}

std::string to_word(const CodecSpec& spec) {
  std::string word = name_of(spec.kind) + ":";
  for (const std::string& key : keys_of(spec.kind)) {
    if (key == "block") word += fmt::format("block={},", spec.block);
    if (key == "tau") word += fmt::format("tau={},", spec.tau);
    if (key == "keep") word += fmt::format("keep={},", spec.keep);
    if (key == "form") word += spec.form == LowRankForm::kPca ? "form=pca," : "form=power-sgd,";
    if (key == "rank") word += fmt::format("rank={},", spec.rank);
    if (key == "iterations") word += fmt::format("iterations={},", spec.iterations);
  }
  return word + (spec.error_feedback ? "feedback=on" : "feedback=off");
}

}  // namespace starling
