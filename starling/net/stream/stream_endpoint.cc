#include "starling/net/stream/stream_endpoint.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"
#include "starling/net/stream/socket.h"

namespace starling {
namespace {

constexpr int kSegmentsPerStep = 4;  // after these, the thread's other transfers have their turn

iovec part(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

// Batch holds pieces of the stream that are moved together. `moved` counts the bytes that have been moved.
struct Batch {
  std::array<iovec, 4> parts{};
  size_t moved = 0;

  size_t total() const {
    size_t sum = 0;
    for (const iovec& p : parts) sum += p.iov_len;
    return sum;
  }
  bool complete() const { return moved == total(); }

  // Returns what is still to be moved, without empty parts. It uses `room`.
  std::span<iovec> rest(std::array<iovec, 4>& room) const {
    size_t skip = moved, count = 0;
    for (const iovec& p : parts) {
      const size_t skipped = std::min(skip, p.iov_len);
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
      : socket_(std::move(socket)),
        security_(keys.security),
        dead_after_(keys.dead_after),
        peer_(describe_peer(socket_.get())),
        sealing_(keys.sending, Gcm::Use::kSeal),
        opening_(keys.receiving, Gcm::Use::kOpen) {
    set_proved(keys.caller, keys.further);
  }

  void begin_send(const Outgoing& message) override {
    check_outgoing(message);
    if (sending_) throw_gone("an earlier message to it failed, so the connection is unusable");
    sending_ = true;
    outgoing_ = message;
    out_form_ = body_form(security_, message.kind);
    out_header_ = seal_frame_header(sealing_, {message.tag, message.bytes(), message.kind});
    out_at_ = 0;
    load_outgoing(part(out_header_));
  }

  bool step_send() override {
    for (int i = 0; i < kSegmentsPerStep; ++i) {
      std::array<iovec, 4> room;
      const Moved sent = send_some(socket_.get(), out_.rest(room));
      if (sent.error != 0) throw_gone(explain_errno(sent.error));
      out_.moved += sent.bytes;
      sent_.fetch_add(sent.bytes, std::memory_order_relaxed);
      if (!out_.complete()) return false;
      if (out_at_ == outgoing_.bytes()) {
        sending_ = false;
        count_sent(outgoing_);
        return true;
      }
      load_outgoing({});
    }
    return false;
  }

  void begin_recv(const Incoming& message) override {
    if (receiving_) throw_gone("an earlier message from it failed, so the connection is unusable");
    receiving_ = true;
    incoming_ = message;
    in_form_ = body_form(security_, message.kind);
    in_at_ = 0;
    if (peeked_) check_expected(*peeked_, incoming_, *this);
    const size_t header_bytes = in_.moved;
    load_incoming(part(in_header_));
    in_.moved = header_bytes;
  }

  // The header and the first bytes of the message are read by one call if they are there. If the header is
  // not the expected one, the connection is unusable, and what was read does not matter.
  bool step_recv() override {
    for (int i = 0; i < kSegmentsPerStep; ++i) {
      std::array<iovec, 4> room;
      if (!read(in_.rest(room))) return false;
      if (!peeked_ && in_.moved >= kFrameHeaderBytes) {
        peek_header();
        check_expected(*peeked_, incoming_, *this);
      }
      if (!in_.complete()) return false;
      if (in_form_ != BodyForm::kPlain && incoming_.bytes() > 0)
        open_segment(opening_, in_form_, in_pieces_, in_seal_, name());
      if (in_at_ == incoming_.bytes()) {
        in_ = {};
        peeked_.reset();
        receiving_ = false;
        count_received(incoming_);
        return true;
      }
      load_incoming({});
    }
    return false;
  }

  std::optional<MessageInfo> step_peek() override {
    if (receiving_) throw_gone("an earlier message from it failed, so the connection is unusable");
    while (!peeked_) {
      iovec rest = part(std::span(in_header_).subspan(in_.moved));
      if (!read({&rest, 1})) return std::nullopt;
      if (in_.moved == kFrameHeaderBytes) peek_header();
    }
    return peeked_;
  }

  int poll_fd() const override { return socket_.get(); }
  std::string peer() const override { return peer_; }
  void check_alive() const override {
    if (resting_.exchange(false)) set_keep_alive(socket_.get(), true);
    if (const auto silence = unanswered_for(socket_.get(), dead_after_))
      throw_gone(fmt::format("no answer for {} ms: the host or the network to it is down", silence->count()));
    if (was_given_up(socket_.get())) throw_gone("no answer: the host or the network to it is down");
  }
  std::chrono::milliseconds dead_after() const override { return dead_after_; }
  void rest() override {
    if (!resting_.exchange(true)) set_keep_alive(socket_.get(), false);
  }
  void shutdown() override { ::shutdown(socket_.get(), SHUT_RDWR); }
  void pass_through(const std::function<UniqueFd(UniqueFd)>& relay) override {
    socket_ = relay(std::move(socket_));
  }

 private:
  [[noreturn]] void throw_gone(const std::string& why) const {
    throw CommError(fmt::format("{}: {}", name(), why), peer_rank());
  }

  // Loads the next segment of the message, behind `header`. A plain message is loaded whole.
  void load_outgoing(iovec header) {
    out_.moved = 0;
    if (out_form_ == BodyForm::kPlain) {
      out_.parts = {header, part(outgoing_.head), part(outgoing_.body), iovec{}};
      out_at_ = outgoing_.bytes();
      return;
    }
    const size_t count = std::min(kSegmentBytes, outgoing_.bytes() - out_at_);
    const auto pieces = cut_message(outgoing_.head, outgoing_.body, out_at_, count);
    out_at_ += count;
    out_.parts = {header};
    if (count == 0) return;
    if (out_form_ == BodyForm::kEncrypted) {
      if (encrypted_.size() < count) encrypted_.resize(count);
      out_seal_ = seal_segment(sealing_, out_form_, pieces, encrypted_.data());
      out_.parts = {header, part(std::span(encrypted_).first(count)), part(out_seal_), iovec{}};
    } else {
      out_seal_ = seal_segment(sealing_, out_form_, pieces, nullptr);
      out_.parts = {header, part(pieces[0]), part(pieces[1]), part(out_seal_)};
    }
  }

  // Like load_outgoing(), for the arriving message.
  void load_incoming(iovec header) {
    in_.moved = 0;
    if (in_form_ == BodyForm::kPlain) {
      in_.parts = {header, part(incoming_.head), part(incoming_.body), iovec{}};
      in_at_ = incoming_.bytes();
      return;
    }
    const size_t count = std::min(kSegmentBytes, incoming_.bytes() - in_at_);
    in_pieces_ = cut_message(incoming_.head, incoming_.body, in_at_, count);
    in_at_ += count;
    in_.parts = {header, part(in_pieces_[0]), part(in_pieces_[1]), count > 0 ? part(in_seal_) : iovec{}};
  }

  // Reads what is there. Returns false if that is nothing.
  bool read(std::span<iovec> parts) {
    if (parts.empty()) return true;  // the header was peeked, and the message is empty
    const Moved got = recv_some(socket_.get(), parts);
    if (got.error != 0) throw_gone(explain_errno(got.error));
    if (got.ended)
      throw_gone(in_.moved > 0 || peeked_ ? "the connection was closed within a message"
                                          : "the connection was closed");
    if (got.bytes == 0) return false;
    in_.moved += got.bytes;
    received_.fetch_add(got.bytes, std::memory_order_relaxed);
    return true;
  }

  void peek_header() { peeked_ = open_frame_header(opening_, in_header_, name()); }

  UniqueFd socket_;
  const DataSecurity security_;
  const std::chrono::milliseconds dead_after_;
  std::string peer_;
  mutable std::atomic<bool> resting_{false};  // whether the keep-alive is off

  // Only the sending thread uses these.
  Gcm sealing_;
  Outgoing outgoing_;
  BodyForm out_form_ = BodyForm::kPlain;
  size_t out_at_ = 0;  // bytes of the message that are in out_ or have been sent
  Batch out_;
  FrameHeader out_header_;
  Seal out_seal_;
  std::vector<std::byte> encrypted_;  // at most a segment
  bool sending_ = false;

  // Only the receiving thread uses these. While no message is being received, in_.moved counts the bytes of
  // the header that were peeked.
  Gcm opening_;
  Incoming incoming_;
  BodyForm in_form_ = BodyForm::kPlain;
  size_t in_at_ = 0;
  Batch in_;
  std::array<Bytes, 2> in_pieces_;
  FrameHeader in_header_;
  Seal in_seal_;
  std::optional<MessageInfo> peeked_;
  bool receiving_ = false;
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

JobIdentity identity_on(int fd, const JobIdentity& identity) {
  JobIdentity same = identity;
  if (local_address(fd).family() == AF_UNIX) same.security = DataSecurity::kNone;
  return same;
}

ConnectionKeys greet(int fd, const JobIdentity& identity, const Parties& parties, const std::string& address,
                     Deadline deadline, std::shared_ptr<const TlsSettings> settings) {
  Handshake handshake(HandshakeRole::kClient, identity_on(fd, identity), parties, std::move(settings));
  try {
    for (;;) {
      send_greeting(fd, handshake.output(), deadline);
      handshake.clear_output();
      if (handshake.done()) return handshake.keys();
      while (!handshake.done() && handshake.output().empty()) receive_greeting(fd, handshake, deadline);
    }
  } catch (const TimeoutError& e) {
    throw TimeoutError(address + ": " + e.what());
  } catch (const CommError& e) {
    // The output tells the peer the reason, if the socket takes it.
    std::string alert = handshake.output();
    iovec rest{alert.data(), alert.size()};
    if (!alert.empty()) (void)send_some(fd, {&rest, 1});
    throw CommError(address + ": " + e.what());
  }
}

std::unique_ptr<Endpoint> connect_stream(std::span<const SocketAddress> addresses,
                                         const JobIdentity& identity, const Parties& parties,
                                         Deadline deadline, std::shared_ptr<const TlsSettings> settings) {
  UniqueFd fd = connect_to_any(addresses, deadline, identity.dead_after);
  check_same_user(fd.get());
  const bool is_tcp = addresses.front().family() != AF_UNIX;
  const std::string name = is_tcp ? remote_address(fd.get()).text() : addresses.front().text();
  const ConnectionKeys keys = greet(fd.get(), identity, parties, name, deadline, std::move(settings));
  return make_stream_endpoint(std::move(fd), keys);
}

std::unique_ptr<Endpoint> tcp_connect(const std::string& address, const JobIdentity& identity,
                                      const Parties& parties, Deadline deadline,
                                      std::shared_ptr<const TlsSettings> settings) {
  return connect_stream(resolve_all(parse_host_port(address)), identity, parties, deadline,
                        std::move(settings));
}

std::unique_ptr<Endpoint> unix_connect(const std::string& address, const JobIdentity& identity,
                                       const Parties& parties, Deadline deadline) {
  const SocketAddress only = unix_address(address);
  return connect_stream({&only, 1}, identity, parties, deadline);
}

}  // namespace starling
