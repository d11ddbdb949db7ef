#include "starling/codec/make_codec.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/spec/extensions.h"

namespace starling {

#define STARLING_CODEC(kind, maker, ...) \
  std::unique_ptr<Codec> maker(const CodecSpec& spec, const std::vector<TensorShape>& shapes);
#include "starling/spec/codecs.inc"
#undef STARLING_CODEC

namespace {

using CodecMaker = std::unique_ptr<Codec> (*)(const CodecSpec&, const std::vector<TensorShape>&);

// The makers of the codecs, in the order of CodecKind.
#define STARLING_CODEC(kind, maker, ...) &maker,
constexpr CodecMaker kCodecMakers[] = {
#include "starling/spec/codecs.inc"
};
#undef STARLING_CODEC

}  // namespace

std::unique_ptr<Codec> make_codec(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  if (spec.kind == CodecKind::kAdded) {
    std::unique_ptr<Codec> made = spec.added->make(spec, shapes);
    if (made == nullptr)
      throw ConfigError("--codec", fmt::format("the program's function for codec {} returned no codec",
                                               spec.added->traits.name));
    return made;
  }
  return kCodecMakers[static_cast<size_t>(spec.kind)](spec, shapes);
}

std::unique_ptr<Codec> make_value_codec(const CodecSpec& spec) {
  if (spec.values == CodecKind::kNone) return nullptr;
  CodecSpec of_values;
  of_values.kind = spec.values;
  of_values.block = spec.block;
  return make_codec(of_values);
}

std::unique_ptr<Codec> make_codec(const std::string& word, const std::vector<TensorShape>& shapes) {
  return make_codec(parse_codec(word), shapes);
}

}  // namespace starling
