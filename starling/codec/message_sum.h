// Decodes the messages of all ranks for one range and computes their mean. compressed_all_reduce.h and
// coded_reduce_scatter.h exchange the messages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/comm/group.h"

namespace starling {

// Decodes one message per rank, adds the values in rank order and divides by the number of ranks. Message r
// has bytes[r] bytes. stride: the distance between two messages; 0 if they lie one after another.
// Errors: CommError that names the rank whose message is not one of this codec.
void mean_of_messages(const Codec& codec, std::span<const std::byte> messages, std::span<const size_t> bytes,
                      size_t stride, std::span<float> out);

// Decodes a message of `rank`. Errors: CommError that names the rank if the message is not one of this codec.
void decode_from(int rank, const Codec& codec, std::span<const std::byte> message, std::span<float> out);

// Throws CommError if `rank`, on `host`, announces a message that is longer than a message of `count` values
// can be.
void check_announced(const Codec& codec, int rank, const std::string& host, size_t bytes, size_t count);

// Checks that the codec of a part decides as `whole`, the codec of the whole range, does: combining(),
// fixed_rate() and elementwise() must not depend on the shapes. Otherwise ranks would call different
// collectives. Errors: ConfigError that names the codec and the function. If all ranks check all parts, all
// of them throw.
void require_same_decisions(const Codec& whole, const Codec& part);

// Returns the lengths of all ranks' messages of `count` values for this rank, of which `codec` is the codec.
// sent[r]: the length of this rank's message for rank r. Collective. Errors: those of check_announced();
// CommError.
std::vector<size_t> exchange_lengths(Group& group, const Codec& codec, size_t count,
                                     std::span<const size_t> sent);

}  // namespace starling
