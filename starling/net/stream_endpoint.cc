#include "starling/net/stream_endpoint.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "starling/base/error.h"
#include "starling/net/frame.h"
#include "starling/net/socket.h"

namespace starling {
namespace {

iovec part(const std::byte* data, size_t bytes) {
  return {const_cast<std::byte*>(data), bytes};
}

// Header, head, body and mac of one message, of which `moved` bytes are through.
struct Frame {
  std::array<iovec, 4> parts{};
  uint64_t moved = 0;
  uint64_t total = 0;

  // What is still to be moved; empty parts left out.
  std::span<iovec> rest(std::array<iovec, 4>& room) const {
    uint64_t skip = moved;
    size_t count = 0;
    for (const iovec& p : parts) {
      const size_t skipped = static_cast<size_t>(std::min<uint64_t>(skip, p.iov_len));
      skip -= skipped;
      if (skipped < p.iov_len)
        room[count++] = {static_cast<char*>(p.iov_base) + skipped, p.iov_len - skipped};
    }
    return {room.data(), count};
  }
};

class StreamEndpoint final : public Endpoint {
 public:
  StreamEndpoint(UniqueFd socket, const ConnectionKeys& keys)
      : socket_(std::move(socket)), keys_(keys), peer_(describe_peer(socket_.get())) {}

  void begin_send(const Outgoing& message) override {
    check_outgoing(message);
    if (out_.moved != out_.total) throw_gone("an earlier message to it was cut off");
    const bool control = message.kind == MessageKind::kControl;
    out_header_ = encode_frame_header({{message.tag, message.bytes(), message.kind}, out_sequence_++});
    if (control) out_mac_ = hmac_sha256(keys_.sending, {out_header_, message.head, message.body});
    out_.parts = {
        part(out_header_.data(), out_header_.size()), part(message.head.data(), message.head.size()),
        part(message.body.data(), message.body.size()), part(out_mac_.data(), control ? out_mac_.size() : 0)};
    out_.moved = 0;
    out_.total = framed_bytes(message.kind, message.bytes());
  }

  bool step_send() override {
    std::array<iovec, 4> room;
    const Moved sent = send_some(socket_.get(), out_.rest(room));
    if (sent.error != 0) throw_gone(explain_errno(sent.error));
    out_.moved += sent.bytes;
    sent_.fetch_add(sent.bytes, std::memory_order_relaxed);
    return out_.moved == out_.total;
  }

  void begin_recv(const Incoming& message) override {
    if (receiving_) throw_gone("an earlier message from it was cut off");
    const bool control = message.kind == MessageKind::kControl;
    incoming_ = message;
    in_.parts = {part(in_header_.data(), in_header_.size()), part(message.head.data(), message.head.size()),
                 part(message.body.data(), message.body.size()),
                 part(in_mac_.data(), control ? in_mac_.size() : 0)};
    in_.total = framed_bytes(message.kind, message.bytes());
    receiving_ = true;
    if (peeked_) check_expected(peeked_->info, incoming_, *this);
  }

  // Header and message are read by one call where both are there. Should the header turn out not to be the expected one,
  // the connection is of no more use and neither is what was read.
  bool step_recv() override {
    std::array<iovec, 4> room;
    if (!read(in_.rest(room))) return false;
    if (!peeked_ && in_.moved >= kFrameHeaderBytes) {
      peek_header();
      check_expected(peeked_->info, incoming_, *this);
    }
    if (in_.moved < in_.total) return false;
    if (incoming_.kind == MessageKind::kControl) check_mac();
    in_.moved = 0;
    peeked_.reset();
    receiving_ = false;
    return true;
  }

  std::optional<MessageInfo> step_peek() override {
    if (receiving_) throw_gone("an earlier message from it was cut off");
    while (!peeked_) {
      iovec rest = part(in_header_.data() + in_.moved, kFrameHeaderBytes - in_.moved);
      if (!read({&rest, 1})) return std::nullopt;
      if (in_.moved == kFrameHeaderBytes) peek_header();
    }
    return peeked_->info;
  }

  int poll_fd() const override { return socket_.get(); }
  std::string peer() const override { return peer_; }
  void check_alive() const override {
    if (const auto silence = unanswered_for(socket_.get()))
      throw_gone(fmt::format("no answer for {} ms: the host or the network to it is down", silence->count()));
  }
  void shutdown() override { ::shutdown(socket_.get(), SHUT_RDWR); }
  void pass_through(const std::function<UniqueFd(UniqueFd)>& relay) override {
    socket_ = relay(std::move(socket_));
  }

 private:
  [[noreturn]] void throw_gone(const std::string& why) const {
    throw CommError(fmt::format("{}: {}", name(), why), peer_rank());
  }

  // Reads what is there; false if that is nothing.
  bool read(std::span<iovec> parts) {
    if (parts.empty()) return true;  // peeked, and the message is empty
    const Moved got = recv_some(socket_.get(), parts);
    if (got.error != 0) throw_gone(explain_errno(got.error));
    if (got.ended)
      throw_gone(in_.moved > 0 ? "the connection was closed within a message" : "the connection was closed");
    if (got.bytes == 0) return false;
    in_.moved += got.bytes;
    received_.fetch_add(got.bytes, std::memory_order_relaxed);
    return true;
  }

  void peek_header() { peeked_ = decode_frame_header(in_header_, in_sequence_++, name()); }

  void check_mac() const {
    const Digest expected = hmac_sha256(keys_.receiving, {in_header_, incoming_.head, incoming_.body});
    if (!equal_in_constant_time(expected, in_mac_))
      throw_gone("a control message is not authentic; someone tampers with the connection");
  }

  UniqueFd socket_;
  ConnectionKeys keys_;
  std::string peer_;

  // Touched by the sending thread only.
  Frame out_;
  std::array<std::byte, kFrameHeaderBytes> out_header_;
  Digest out_mac_;
  uint64_t out_sequence_ = 0;

  // Touched by the receiving thread only. in_.moved counts from the header's first byte, peeked or not.
  Frame in_;
  std::array<std::byte, kFrameHeaderBytes> in_header_;
  Digest in_mac_;
  std::optional<FrameHeader> peeked_;
  Incoming incoming_;
  bool receiving_ = false;
  uint64_t in_sequence_ = 0;
};

}  // namespace

std::unique_ptr<Endpoint> make_stream_endpoint(UniqueFd socket, const ConnectionKeys& keys) {
  return std::make_unique<StreamEndpoint>(std::move(socket), keys);
}

namespace {

void send_greeting(int fd, std::string text, Deadline deadline) {
  for (size_t sent = 0; sent < text.size();) {
    iovec rest{text.data() + sent, text.size() - sent};
    const Moved moved = send_some(fd, {&rest, 1});
    if (moved.error != 0) throw CommError(explain_errno(moved.error));
    sent += moved.bytes;
    if (sent < text.size() && !wait_for(fd, POLLOUT, deadline)) throw TimeoutError("no handshake in time");
  }
}

void receive_greeting(int fd, Handshake& handshake, Deadline deadline) {
  std::array<std::byte, 512> buffer;
  iovec room{buffer.data(), std::min(buffer.size(), handshake.wanted())};
  const Moved got = recv_some(fd, {&room, 1});
  if (got.error != 0) throw CommError(explain_errno(got.error));
  if (got.ended) throw CommError(std::string("the peer ") + handshake.meaning_of_end());
  if (got.bytes > 0) return handshake.feed(std::span(buffer).first(got.bytes));
  if (!wait_for(fd, POLLIN, deadline))
    throw TimeoutError("no answer to our greeting in time; is it a Starling process that listens there?");
}

}  // namespace

ConnectionKeys greet(int fd, const JobIdentity& identity, const std::string& address, Deadline deadline) {
  Handshake handshake(HandshakeRole::kClient, identity);
  try {
    for (;;) {
      send_greeting(fd, handshake.output(), deadline);
      handshake.clear_output();
      if (handshake.done()) return handshake.keys();
      while (!handshake.done()) receive_greeting(fd, handshake, deadline);
    }
  } catch (const TimeoutError& e) {
    throw TimeoutError(address + ": " + e.what());
  } catch (const CommError& e) {
    throw CommError(address + ": " + e.what());
  }
}

std::unique_ptr<Endpoint> connect_stream(const SocketAddress& address, const JobIdentity& identity,
                                         Deadline deadline) {
  UniqueFd fd = connect_to(address, deadline);
  check_same_user(fd.get());
  const ConnectionKeys keys = greet(fd.get(), identity, address.text(), deadline);
  return make_stream_endpoint(std::move(fd), keys);
}

}  // namespace starling
