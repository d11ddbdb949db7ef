// A message as UCX carries it (endpoint.h): in the first message the sealed header of net/frame.h and the first bytes, then the rest,
// then the seals of its segments. The bytes are sealed and opened exactly as over a stream: in segments of 64 KiB, numbered through.
#pragma once

#include <sys/uio.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "starling/net/endpoint.h"
#include "starling/net/frame.h"
#include "starling/net/handshake.h"

namespace starling {

// A message of at most so many bytes goes in one piece; of a longer one its head does.
constexpr size_t kUcxFirstBytes = 8192;
constexpr size_t kUcxFirstRoom = kFrameHeaderBytes + kUcxFirstBytes + kSealBytes;
// Where a worker sends portions unasked, the rest of a message goes in them if it has at most so many bytes.
constexpr size_t kUcxMostUnasked = size_t{1} << 20;
// What leaves unasked the receiver must keep until somebody there receives it: so much of a connection at most, counted by ucx_ahead().
// It tells the sender after each half of it that was received.
constexpr size_t kUcxMostAhead = size_t{4} << 20;
// How much of that a message of these parts takes, in bytes: what may leave unasked, and 8 KiB, for UCX keeps short ones in long buffers.
constexpr uint64_t ucx_ahead(size_t first, size_t rest, size_t seals) {
  return 8192 + first + (rest <= kUcxMostUnasked ? rest + seals : 0);
}
// Whoever must wait has sent messages that the receiver is still to receive, and of which it will tell.
static_assert(ucx_ahead(kUcxFirstRoom, kUcxMostUnasked,
                        kUcxMostUnasked / kSegmentBytes * kSealBytes + kSealBytes) < kUcxMostAhead / 2);

// What is to be moved: one or two pieces; none where there is nothing.
class UcxPieces {
 public:
  UcxPieces() = default;
  explicit UcxPieces(std::array<ConstBytes, 2> pieces);
  std::span<const iovec> parts() const { return {parts_.data(), count_}; }
  size_t bytes() const;
  // `count` bytes of them from `at` on.
  UcxPieces cut(size_t at, size_t count) const;

 private:
  std::array<iovec, 2> parts_{};
  size_t count_ = 0;
};

// The sending side. One thread.
class UcxOutgoing {
 public:
  explicit UcxOutgoing(const ConnectionKeys& keys);

  // Seals and, where that is wanted, encrypts. What the following return is good until the next call; rest() may lie in the
  // message's own memory.
  void prepare(const Outgoing& message);
  UcxPieces first() const { return UcxPieces({std::span(first_), {}}); }
  UcxPieces rest() const { return rest_; }
  UcxPieces seals() const;

 private:
  const DataSecurity security_;
  Gcm sealing_;
  std::vector<std::byte> first_;
  UcxPieces rest_;
  std::vector<Seal> seals_;  // empty where they are part of first_
  std::vector<std::byte> encrypted_;
};

// The receiving side. One thread. Errors: CommError naming `from`; then nothing more can be received.
class UcxIncoming {
 public:
  explicit UcxIncoming(const ConnectionKeys& keys);

  // Where the first message goes.
  UcxPieces room();
  // What `bytes` of a first message announce.
  MessageInfo open_first(size_t bytes, const std::string& from);
  // Prepares for the rest of the message, whose size is known to be right.
  void begin(const Incoming& message);
  UcxPieces rest() const { return rest_; }
  UcxPieces seals();
  // All has come: puts the first bytes where they belong, opens the segments.
  void finish(const std::string& from);

 private:
  const DataSecurity security_;
  Gcm opening_;
  std::array<std::byte, kUcxFirstRoom> first_;
  BodyForm form_ = BodyForm::kPlain;
  size_t in_first_ = 0;  // bytes of the message
  Incoming message_;
  UcxPieces rest_;
  std::vector<Seal> seals_;
};

}  // namespace starling
