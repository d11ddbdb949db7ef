// make_codec: the codec of a spec, for one range of values.
//
//   const CodecSpec spec = parse_codec("1bit:block=512");
//   const auto codec = make_codec(spec, shapes);
//   std::optional<ErrorFeedback> feedback;
//   if (spec.error_feedback) feedback.emplace(count);
//   compressed_all_reduce(group, *codec, feedback ? &*feedback : nullptr, gradients);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/codec/codec_spec.h"

namespace starling {

// shapes: the tensors that make up the range. lowrank needs them (Error(kConfig) without); int8 and 1bit begin a block at
// each of them; the others do not look. Where shapes are given, every range must be of their total size.
std::unique_ptr<Codec> make_codec(const CodecSpec& spec, const std::vector<TensorShape>& shapes = {});
std::unique_ptr<Codec> make_codec(const std::string& word, const std::vector<TensorShape>& shapes = {});

}  // namespace starling
