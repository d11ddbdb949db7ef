// A message as UCX carries it (ucx_endpoint.h): a first message, the rest, and the seals of the segments.
//
// The first message has the sealed header of net/stream/frame.h and the first bytes. Bytes are sealed and
// opened exactly as on a stream: in segments of 64 KiB that are numbered consecutively.
#pragma once

#include <sys/uio.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "starling/net/endpoint.h"
#include "starling/net/security/handshake.h"
#include "starling/net/stream/frame.h"

namespace starling {

// A message of at most this many bytes travels whole in the first message. Of a longer message, only the head
// travels in the first message, if the head has at most this many bytes.
constexpr size_t kUcxFirstBytes = 8192;
constexpr size_t kUcxFirstRoom = kFrameHeaderBytes + kUcxFirstBytes + kSealBytes;
// If a worker has portions, a rest of at most this many bytes is sent without a request of the receiver.
constexpr size_t kUcxMostUnasked = size_t{1} << 20;
// The receiver must keep what is sent without a request until it is received. kUcxMostAhead is the largest
// number of bytes per connection that a sender has sent and the receiver has not received, as ucx_ahead()
// counts them. The receiver reports to the sender each time it has received half of kUcxMostAhead.
constexpr size_t kUcxMostAhead = size_t{4} << 20;
// Returns how much of kUcxMostAhead a message with parts of these sizes takes, in bytes. It counts what may
// be sent without a request, and 8 KiB, because UCX keeps short messages in long buffers.
constexpr uint64_t ucx_ahead(size_t first, size_t rest, size_t seals) {
  return 8192 + first + (rest <= kUcxMostUnasked ? rest + seals : 0);
}
// A sender waits only if more than half of kUcxMostAhead is not reported yet, so the receiver always reports.
static_assert(ucx_ahead(kUcxFirstRoom, kUcxMostUnasked,
                        kUcxMostUnasked / kSegmentBytes * kSealBytes + kSealBytes) < kUcxMostAhead / 2);

// UcxPieces is what a transfer moves: no, one or two pieces of memory.
class UcxPieces {
 public:
  UcxPieces() = default;
  // Leaves out empty pieces.
  explicit UcxPieces(std::array<ConstBytes, 2> pieces);
  // The pieces that are not empty.
  std::span<const iovec> parts() const { return {parts_.data(), count_}; }
  // Their size.
  size_t bytes() const;
  // Returns `count` bytes of the pieces, from `at` on.
  UcxPieces cut(size_t at, size_t count) const;

 private:
  std::array<iovec, 2> parts_{};
  size_t count_ = 0;
};

// UcxOutgoing is the sending side. One thread at a time may use it.
class UcxOutgoing {
 public:
  // `keys` are those of the connection, seen from this end.
  explicit UcxOutgoing(const ConnectionKeys& keys);

  // Seals the message and encrypts it if the keys ask for it. What the following functions return is valid
  // until the next call. rest() may lie in the message's own memory.
  void prepare(const Outgoing& message);
  // The first message.
  UcxPieces first() const { return UcxPieces({std::span(first_), {}}); }
  // The rest; empty if there is none.
  UcxPieces rest() const { return rest_; }
  // The seals; empty if there are none, or if they are in the first message.
  UcxPieces seals() const;

 private:
  const DataSecurity security_;
  Gcm sealing_;
  std::vector<std::byte> first_;
  UcxPieces rest_;
  std::vector<Seal> seals_;  // empty if they are in first_
  std::vector<std::byte> encrypted_;
};

// UcxIncoming is the receiving side. One thread at a time may use it.
// Errors: CommError that names `from`. After an error nothing more can be received.
class UcxIncoming {
 public:
  // `keys` are those of the connection, seen from this end.
  explicit UcxIncoming(const ConnectionKeys& keys);

  // The memory for the first message.
  UcxPieces room();
  // Opens the header of a first message of `bytes` and returns what it announces.
  MessageInfo open_first(size_t bytes, const std::string& from);
  // Prepares for the rest of the message. The caller has checked its size.
  void begin(const Incoming& message);
  // The memory for the rest.
  UcxPieces rest() const { return rest_; }
  // The memory for the seals.
  UcxPieces seals();
  // Call it when all parts have arrived. It puts the first bytes where they belong and opens the segments.
  void finish(const std::string& from);

 private:
  const DataSecurity security_;
  Gcm opening_;
  std::array<std::byte, kUcxFirstRoom> first_;
  BodyForm form_ = BodyForm::kPlain;
  size_t in_first_ = 0;  // how many bytes of the message are in first_
  Incoming message_;
  UcxPieces rest_;
  std::vector<Seal> seals_;
};

}  // namespace starling
