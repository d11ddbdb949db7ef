#include "starling/net/store/store_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/store/store_table.h"
#include "starling/net/stream/socket.h"

namespace starling {

StoreConnection::StoreConnection(UniqueFd socket, const ConnectionKeys& keys)
    : socket_(std::move(socket)),
      security_(keys.security),
      unix_(local_address(socket_.get()).family() == AF_UNIX),
      peer_(describe_peer(socket_.get())),
      sealing_(keys.sending, Gcm::Use::kSeal),
      reader_(keys) {}

void StoreConnection::queue(uint32_t tag, std::string_view body, int passed_fd) {
  STARLING_CHECK(output_.empty(), "a store connection queues one frame at a time");
  output_ = seal_control_frame(sealing_, security_, tag, body);
  sent_ = 0;
  passing_ = passed_fd < 0 ? UniqueFd() : duplicate_fd(peer_, passed_fd);
}

void StoreConnection::fail(int error) {
  peer_ended_ = peer_ended_ || error == ECONNRESET || error == EPIPE;
  throw CommError(fmt::format("{}: {}", peer_, explain_errno(error)));
}

bool StoreConnection::flush() {
  while (!output_.empty()) {
    iovec rest{output_.data() + sent_, output_.size() - sent_};
    const Moved moved = send_some(socket_.get(), {&rest, 1}, passing_.get());
    if (moved.error != 0) fail(moved.error);
    if (moved.bytes == 0) return false;
    passing_.reset();
    sent_ += moved.bytes;
    if (sent_ == output_.size()) output_.clear();
  }
  return true;
}

bool StoreConnection::fill() {
  std::array<char, 16 * 1024> buffer;
  iovec room{buffer.data(), buffer.size()};
  UniqueFd passed;
  const Moved got = recv_some(socket_.get(), {&room, 1}, unix_ ? &passed : nullptr);
  if (got.error != 0) fail(got.error);
  peer_ended_ = peer_ended_ || got.ended;
  if (passed.valid()) passed_ = std::move(passed);
  input_.append(buffer.data(), got.bytes);
  if (input_.size() > framed_bytes(BodyForm::kSealed, kMaxControlBytes) + buffer.size())
    throw CommError(peer_ + ": sends requests without waiting for answers");
  return !got.ended;
}

std::optional<OpenedFrame> StoreConnection::next() {
  return reader_.next(input_, peer_);
}

}  // namespace starling
