// Gathers the messages of all ranks in pieces, so that a rank encodes and decodes one piece while other
// pieces are on their way.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Writes the message of the values [begin, end) of this rank's range. `out` has `width` bytes for each value.
using EncodePiece = std::function<void(size_t begin, size_t end, std::span<std::byte> out)>;
// Reads the messages of all ranks of the values [begin, end), which lie in rank order.
using DecodePiece = std::function<void(size_t begin, size_t end, std::span<const std::byte> messages)>;

// The most pieces of one range, and the least bytes of a piece. Each piece costs a collective.
inline constexpr size_t kMostPieces = 4, kLeastPieceBytes = size_t{1} << 20;

// Gathers `count` values of `width` bytes each from every rank. `encode` is called for all pieces in
// ascending order, then `decode` likewise. Both are called by the calling thread. If all ranks are on one
// host, there is one piece. The bytes are those of one all-gather. Collective: all ranks pass an equal
// `count` and `width`.
// own, all: memory for the messages of this rank and of all ranks. They are resized and can be used again
// when the function returns or throws.
// Errors: those of `encode`, `decode` and the group.
void gather_in_pieces(Group& group, size_t count, size_t width, std::vector<std::byte>& own,
                      std::vector<std::byte>& all, const EncodePiece& encode, const DecodePiece& decode);

}  // namespace starling
