#include "starling/spec/codec_table.h"

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

bool corrects_momentum(const RunSpec& spec) {
  const std::string_view word = spec.exchange.codec;
  const CodecTraits* codec = find_codec(word.substr(0, word.find(':')), spec);
  return codec != nullptr && codec->momentum_correction && exchange_traits(spec).momentum_correction &&
         word.find("feedback=off") == std::string_view::npos &&
         word.find("correction=off") == std::string_view::npos;
}

std::string_view codec_words(bool weights) {
  static const std::string all = joined_codecs(false, true, " ");
  static const std::string of_weights = joined_codecs(true, true, " ");
  return weights ? of_weights : all;
}

std::string codec_list(bool weights, bool none) {
  return joined_codecs(weights, none, ", ");
}

}  // namespace starling
