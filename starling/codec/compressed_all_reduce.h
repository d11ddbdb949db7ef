// compressed_all_reduce: the mean of the ranks' arrays, each of which travels as its codec's message.
//
//   gathering codecs   each rank encodes its own array; the messages are all-gathered; every rank decodes and adds them in
//                      rank order and divides by p: bit-identical on all ranks.
//                      bytes that a rank of p sends, b the message's: (p - 1) b between hosts; b written and (p - 1) b read in
//                      a window. Where messages vary in length (fixed_rate() false) their sizes go first, 8 bytes each in
//                      the same way, and b is the longest.
//   averaging codecs   (none, lowrank as PowerSGD) all-reduce the arrays of AveragingCodec: 2 (p - 1)/p b as a ring.
//
// docs/codecs.md has the table; a test compares it with Group::traffic().
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/codec/error_feedback.h"
#include "starling/comm/group.h"

namespace starling {

// Memory kept from call to call, so that a step allocates nothing.
struct ExchangeBuffers {
  std::vector<std::byte> own, all;
  std::vector<float> contributed;
};

// Collective over the group; blocks. Replaces `data` by the mean. feedback: null for none, else this rank's, of data.size()
// values. buffers: null to allocate. Returns the bytes of this rank's message. Every rank needs the same codec.
// Errors: CommError naming the rank whose message is not one of this codec; those of the group.
size_t compressed_all_reduce(Group& group, Codec& codec, ErrorFeedback* feedback, std::span<float> data,
                             ExchangeBuffers* buffers = nullptr);

}  // namespace starling
