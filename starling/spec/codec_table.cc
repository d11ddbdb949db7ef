#include "starling/spec/codec_table.h"

#include <algorithm>
#include <charconv>

#include "starling/spec/extensions.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

#define STARLING_CODEC(kind, maker, ...) CodecTraits{__VA_ARGS__},
constexpr CodecTraits kCodecs[] = {
#include "starling/spec/codecs.inc"
};
#undef STARLING_CODEC

std::string joined_codecs(bool weights, bool none, std::string_view separator) {
  std::string names;
  for (const CodecTraits& codec : kCodecs) {
    if ((weights && !codec.weights) || (!none && codec.name == kCodecs[0].name)) continue;
    if (!names.empty()) names += separator;
    names += codec.name;
  }
  return names;
}

}  // namespace

std::span<const CodecTraits> codec_table() {
  return kCodecs;
}

const CodecTraits* find_codec(std::string_view name) {
  for (const CodecTraits& codec : kCodecs) {
    if (codec.name == name) return &codec;
  }
  return nullptr;
}

const CodecTraits* find_codec(std::string_view name, const RunSpec& spec) {
  if (const auto added = find_added_codec(spec.extensions.get(), name)) return &added->traits;
  return find_codec(name);
}

std::string_view first_codec(std::string_view word) {
  return word.substr(0, word.find_first_of(":+"));
}

double setting_of(std::string_view word, std::string_view key, double otherwise) {
  for (size_t at = word.find(':'); at < word.size(); at = word.find(',', at)) {
    const std::string_view setting = word.substr(++at);
    if (!setting.starts_with(key) || !setting.substr(key.size()).starts_with('=')) continue;
    const std::string_view text = setting.substr(key.size() + 1);
    double number = otherwise;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  }
  return otherwise;
}

bool corrects_momentum(const RunSpec& spec) {
  const std::string_view word = spec.exchange.codec;
  const CodecTraits* codec = find_codec(first_codec(word), spec);
  if (codec == nullptr || !codec->momentum_correction || !exchange_traits(spec).momentum_correction ||
      spec.train.shard != Shard::kNone)
    return false;
  const auto has = [&](std::string_view setting) { return word.find(setting) != std::string_view::npos; };
  return !has("correction=off") && !(codec->factor_masking && has("feedback=off"));
}

std::string_view codec_words(bool weights) {
  static const std::string all = joined_codecs(false, true, " ");
  static const std::string of_weights = joined_codecs(true, true, " ");
  return weights ? of_weights : all;
}

std::string codec_list(bool weights, bool none) {
  return joined_codecs(weights, none, ", ");
}

std::string codec_stacks(bool weights, std::string_view separator) {
  std::string stacks;
  for (const CodecTraits& codec : kCodecs) {
    if (weights && !codec.weights) continue;
    for (std::string_view left = codec.values; !left.empty();) {
      const size_t space = std::min(left.find(' '), left.size());
      if (!stacks.empty()) stacks += separator;
      stacks += codec.name;
      stacks += '+';
      stacks += left.substr(0, space);
      left.remove_prefix(std::min(space + 1, left.size()));
    }
  }
  return stacks;
}

}  // namespace starling
