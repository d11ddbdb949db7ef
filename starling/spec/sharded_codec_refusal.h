// Which codecs of gradients train.shard cannot be combined with (codec/coded_reduce_scatter.h).
#pragma once

#include <optional>

#include "starling/spec/refusal.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the first reason why the gradients of a run with train.shard cannot be encoded: ZeRO stage 3, parts
// of a batch whose gradients are reduced one by one, or a momentum before the codec. Nothing if there is
// none, or if the run has no codec or no shards.
std::optional<Refusal> sharded_codec_refusal(const RunSpec& spec);

}  // namespace starling
