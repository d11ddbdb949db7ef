#include "starling/codec/gather_in_pieces.h"

#include <algorithm>
#include <exception>

#include "starling/comm/work.h"

namespace starling {
namespace {

size_t pieces_of(const Group& group, size_t bytes) {
  const bool one_host = std::ssize(group.local_ranks()) == group.size();
  return one_host ? 1 : std::clamp<size_t>(bytes / kLeastPieceBytes, 1, kMostPieces);
}

// The all-gathers that have been started. The destructor waits until none of them uses the memory any more.
struct StartedGathers {
  StartedGathers() = default;
  StartedGathers(const StartedGathers&) = delete;
  StartedGathers& operator=(const StartedGathers&) = delete;
  ~StartedGathers() {
    for (const WorkPtr& work : works) {
      try {
        work->wait();
      } catch (const std::exception&) {  // the error that ends the function comes first
      }
    }
  }
  std::vector<WorkPtr> works;
};

}  // namespace

void gather_in_pieces(Group& group, size_t count, size_t width, std::vector<std::byte>& own,
                      std::vector<std::byte>& all, const EncodePiece& encode, const DecodePiece& decode) {
  const size_t pieces = pieces_of(group, count * width), ranks = static_cast<size_t>(group.size());
  own.resize(count * width);
  all.resize(ranks * count * width);
  const auto begin_of = [&](size_t piece) {
    return count / pieces * piece + std::min(piece, count % pieces);
  };
  if (pieces == 1) {  // the calling thread moves the bytes, which is faster within a host
    encode(0, count, own);
    starling::all_gather(group, own.data(), all.data(), own.size(), DataType::kUint8);
    return decode(0, count, all);
  }
  StartedGathers started;
  for (size_t i = 0; i < pieces; ++i) {
    const size_t begin = begin_of(i), end = begin_of(i + 1), bytes = (end - begin) * width;
    const auto out = std::span(own).subspan(begin * width, bytes);
    encode(begin, end, out);
    std::byte* const gathered = all.data() + ranks * begin * width;
    started.works.push_back(group.all_gather(out.data(), gathered, bytes, DataType::kUint8));
  }
  for (size_t i = 0; i < pieces; ++i) {
    started.works[i]->wait();
    const size_t begin = begin_of(i), end = begin_of(i + 1);
    decode(begin, end, std::span(all).subspan(ranks * begin * width, ranks * (end - begin) * width));
  }
}

}  // namespace starling
