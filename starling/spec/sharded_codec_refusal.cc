#include "starling/spec/sharded_codec_refusal.h"

#include <fmt/format.h>

namespace starling {

std::optional<Refusal> sharded_codec_refusal(const RunSpec& spec) {
  const std::string& codec = spec.exchange.codec;
  const Shard shard = spec.train.shard;
  if (shard == Shard::kNone || codec == "none") return std::nullopt;
  if (shard == Shard::kParameters)
    return Refusal{
        {"train.shard", "exchange.codec"},
        fmt::format("--shard parameters reduces the gradients of each block as they are: leave out --codec "
                    "{}, or use --shard gradients",
                    codec)};
  if (shard == Shard::kGradients && spec.train.accumulate > 1)
    return Refusal{
        {"train.accumulate", "exchange.codec", "train.shard"},
        fmt::format("--shard gradients reduces the gradients of each part of a batch, and --codec {} encodes "
                    "the gradient of the whole batch: use --shard optimizer, or leave out --accumulate",
                    codec)};
  if (codec.find("correction=on") != std::string::npos)
    return Refusal{
        {"exchange.codec", "train.shard"},
        "with train.shard the momentum does not come before the codec: leave out correction=on, or leave out "
        "--shard"};
  return std::nullopt;
}

}  // namespace starling
