#include "starling/codec/codec_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/extensions.h"
#include "starling/spec/run_spec.h"

namespace starling {
namespace {

using Words = std::vector<std::string>;

std::vector<std::string> split(std::string_view text, char separator) {
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

// Returns the keys of a codec's word.
Words keys_of(const CodecSpec& spec) {
  const std::string_view settings = traits_of(spec).settings;
  Words keys = settings.empty() ? Words{} : split(settings, ' ');
  const std::string_view of_values = codec_table()[static_cast<size_t>(spec.values)].settings;
  if (!of_values.empty()) std::ranges::copy(split(of_values, ' '), std::back_inserter(keys));
  keys.emplace_back("feedback");
  return keys;
}

// As PCA, each message of lowrank is complete, so error feedback is off.
bool feedback_by_default(const CodecSpec& spec) {
  const bool complete = spec.kind == CodecKind::kLowRank && spec.form == LowRankForm::kPca;
  return traits_of(spec).error_feedback && !complete;
}

// Setting is one "key=value" of a word, with the place of the word.
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
  // Returns the index of the value in `words`.
  size_t choice(const Words& words) const {
    const auto found = std::find(words.begin(), words.end(), value);
    if (found == words.end()) refuse(fmt::format("one of {}", fmt::join(words, ", ")));
    return static_cast<size_t>(found - words.begin());
  }
};

void apply(const Setting& setting, CodecSpec& spec) {
  const bool common = setting.key == "feedback" || setting.key == "correction";
  if (spec.kind == CodecKind::kAdded && !common) {
    spec.settings[setting.key] = setting.value;  // the function that makes the codec reads it
  } else if (setting.key == "block") {
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
  } else if (setting.key == "correction") {
    spec.momentum_correction = setting.choice({"off", "on"}) == 1;
  } else if (setting.key == "feedback") {
    spec.error_feedback = setting.choice({"off", "on"}) == 1;
  } else {
    spec.settings[setting.key] = setting.value;  // of a further row of the table: its maker reads it
  }
}

// Returns " (did you mean 'x'?)", or an empty text.
std::string hint(const std::string& word, const Words& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near);
}

}  // namespace

const CodecTraits& traits_of(const CodecSpec& spec) {
  return spec.kind == CodecKind::kAdded ? spec.added->traits : codec_table()[static_cast<size_t>(spec.kind)];
}

const Words& codec_names() {
  static const Words names = split(codec_words(false), ' ');
  return names;
}

std::string name_of(const CodecSpec& spec) {
  std::string name(traits_of(spec).name);
  if (spec.values != CodecKind::kNone) name += '+' + codec_names()[static_cast<size_t>(spec.values)];
  return name;
}

namespace {

// Returns the codec of a name with its default settings. Errors: those of parse_codec().
CodecSpec named_codec(const std::string& name, const std::string& where, const Extensions* added) {
  CodecSpec spec;
  spec.added = find_added_codec(added, name);
  if (spec.added != nullptr) {
    spec.kind = CodecKind::kAdded;
    return spec;
  }
  const auto found = std::find(codec_names().begin(), codec_names().end(), name);
  if (found != codec_names().end()) {
    spec.kind = static_cast<CodecKind>(found - codec_names().begin());
    spec.keep = traits_of(spec).keep;
    return spec;
  }
  Words known = codec_names();
  if (added != nullptr) {
    for (const auto& row : added->codecs()) known.emplace_back(row->traits.name);
  }
  throw ConfigError(where, fmt::format("there is no codec '{}'{}; the codecs are {}", name, hint(name, known),
                                       fmt::join(known, ", ")));
}

// Returns the codec of "NAME" or of the stack "NAME+NAME" with its default settings. Errors: those of
// parse_codec().
CodecSpec named_stack(const std::string& name, const std::string& where, const Extensions* added) {
  const Words names = split(name, '+');
  CodecSpec spec = named_codec(names[0], where, added);
  if (names.size() == 1) return spec;
  const Words stacks = split(codec_stacks(false, " "), ' ');
  if (names.size() > 2)
    throw ConfigError(where, fmt::format("codec {}: a stack has two codecs; the stacks are {}", name,
                                         fmt::join(stacks, ", ")));
  const CodecSpec second = named_codec(names[1], where, added);
  if (std::find(stacks.begin(), stacks.end(), name) == stacks.end()) {
    const bool swapped = std::find(stacks.begin(), stacks.end(), names[1] + '+' + names[0]) != stacks.end();
    throw ConfigError(
        where,
        fmt::format("codec {}: {} cannot encode the values of {}{}; the stacks are {}", name, names[1],
                    names[0], swapped ? fmt::format(" (did you mean '{}+{}'?)", names[1], names[0]) : "",
                    fmt::join(stacks, ", ")));
  }
  spec.values = second.kind;
  return spec;
}

}  // namespace

CodecSpec parse_codec(const std::string& word, const std::string& where, const Extensions* added) {
  const size_t colon = word.find(':');
  const std::string name = word.substr(0, colon);
  CodecSpec spec = named_stack(name, where, added);
  const Words keys = keys_of(spec);
  std::set<std::string> seen;
  if (colon != std::string::npos) {
    for (const std::string& part : split(word.substr(colon + 1), ',')) {
      const size_t equals = part.find('=');
      const std::string key = part.substr(0, equals);
      if (equals == std::string::npos || std::find(keys.begin(), keys.end(), key) == keys.end()) {
        throw ConfigError(
            where, fmt::format(
                       "codec {}: '{}' is not one of its settings{}; write KEY=VALUE, where KEY is one of {}",
                       name, part, hint(key, keys), fmt::join(keys, ", ")));
      }
      if (!seen.insert(key).second) {
        throw ConfigError(where, fmt::format("codec {}: {} is given twice", name, key));
      }
      apply({where, name, key, part.substr(equals + 1)}, spec);
    }
  }
  if (!seen.contains("feedback")) spec.error_feedback = feedback_by_default(spec);
  if (spec.error_feedback && !traits_of(spec).contracts)
    throw ConfigError(where, fmt::format("codec {}: feedback=on needs messages that are nearer to the values "
                                         "than zeros are, or what they lack would grow from step to step; "
                                         "leave out feedback, or use 1bit or prune",
                                         name));
  const bool possible = spec.error_feedback || !traits_of(spec).factor_masking;
  if (!seen.contains("correction"))
    spec.momentum_correction = traits_of(spec).momentum_correction && possible;
  if (spec.momentum_correction && !possible)
    throw ConfigError(where, fmt::format("codec {}: correction=on needs feedback=on, because error feedback "
                                         "keeps the values that are not sent",
                                         name));
  return spec;
}

CodecSpec codec_of(const RunSpec& spec) {
  CodecSpec codec = parse_codec(spec.exchange.codec, "--codec", spec.extensions.get());
  codec.seed = static_cast<uint64_t>(spec.train.seed);
  return codec;
}

bool keeps_state(const CodecSpec& spec) {
  if (spec.error_feedback || spec.kind == CodecKind::kAdded) return true;  // only an added codec itself knows
  return traits_of(spec).state && !(spec.kind == CodecKind::kLowRank && spec.form == LowRankForm::kPca);
}

CodecSpec parse_weight_codec(const std::string& word, const std::string& where, const Extensions* added) {
  CodecSpec spec = parse_codec(word, where, added);
  if (spec.kind == CodecKind::kLowRank && word.find("form=") == std::string::npos)
    spec.form = LowRankForm::kPca;
  if (!traits_of(spec).weights || (spec.kind == CodecKind::kLowRank && spec.form == LowRankForm::kPowerSgd)) {
    throw ConfigError(
        where,
        fmt::format("{} is no codec for weights, which must be complete in each message: use one of {}; "
                    "lowrank with form=pca",
                    word, codec_list(true, false)));
  }
  for (const char* setting : {"feedback=on", "correction=on"}) {
    if (word.find(setting) == std::string::npos) continue;
    throw ConfigError(where,
                      fmt::format("{}: weights have no error feedback and no momentum correction, because "
                                  "each message is complete in itself; leave out {}",
                                  word, setting));
  }
  spec.error_feedback = spec.momentum_correction = false;
  return spec;
}

std::string to_word(const CodecSpec& spec) {
  std::string word = name_of(spec) + ":";
  for (const auto& [key, value] : spec.settings) word += fmt::format("{}={},", key, value);
  for (const std::string& key : keys_of(spec)) {
    if (key == "correction") word += spec.momentum_correction ? "correction=on," : "correction=off,";
    if (spec.kind == CodecKind::kAdded) continue;
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
