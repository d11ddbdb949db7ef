// make_codec makes the codec of a spec for one range of values.
//
//   const CodecSpec spec = parse_codec("1bit:block=512");
//   const auto codec = make_codec(spec, shapes);
//   message.resize(codec->encode(gradients, message));
//
// compressed_all_reduce.h computes a mean over ranks with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/codec/codec_spec.h"

namespace starling {

// Makes a codec. shapes: the tensors of the range. lowrank requires them. int8, 1bit, qsgd and terngrad begin
// a block at each tensor, signsgd has a head for each tensor, and dgc chooses values of each tensor. If these
// codecs have shapes, every range must have their total size. The remaining codecs of Starling ignore shapes.
// Errors: Error(kConfig) for lowrank without shapes. For a codec that the program adds: ConfigError if the
// program's function returns null, and the errors of this function.
std::unique_ptr<Codec> make_codec(const CodecSpec& spec, const std::vector<TensorShape>& shapes = {});
// Makes the codec of the values in the messages of `spec`, int8 for prune+int8, or returns null if they are
// fp32.
std::unique_ptr<Codec> make_value_codec(const CodecSpec& spec);
// Makes the codec of a word. Errors: also those of parse_codec().
std::unique_ptr<Codec> make_codec(const std::string& word, const std::vector<TensorShape>& shapes = {});

}  // namespace starling
