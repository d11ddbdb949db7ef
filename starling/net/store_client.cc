#include "starling/net/store_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>

#include "starling/base/error.h"
#include "starling/net/socket.h"
#include "starling/net/stream_endpoint.h"

namespace starling {
namespace {

// True once the socket is connected; false when nobody listens (yet).
bool try_connect(const SocketAddress& address, Deadline deadline, UniqueFd& socket, std::string& why) {
  try {
    socket = connect_to(address, deadline);
    return true;
  } catch (const TimeoutError&) {
    throw;
  } catch (const CommError& e) {
    why = e.what();
    return false;
  }
}

}  // namespace

StoreClient::StoreClient(const std::string& address, const JobIdentity& identity, StoreClientOptions options)
    : address_(address), identity_(identity), options_(options) {
  idle_.push_back(open());
}

StoreClient::~StoreClient() = default;

StoreClient::Connection StoreClient::open() {
  const Deadline deadline = deadline_in(options_.connect_timeout);
  const SocketAddress address = parse_address(address_);
  UniqueFd socket;
  std::string why;
  Milliseconds pause{10};
  while (!try_connect(address, deadline, socket, why)) {
    if (deadline_in(pause) >= deadline)
      throw TimeoutError(
          fmt::format("store: no server within {} ms; {}", options_.connect_timeout.count(), why));
    (void)::poll(nullptr, 0,
                 static_cast<int>(pause.count()));  // a server that starts later cannot be waited for
    pause = std::min(2 * pause, Milliseconds(200));
  }
  check_same_user(socket.get());
  const ConnectionKeys keys = greet(socket.get(), identity_, "store at " + address_, deadline);
  return std::make_shared<StoreConnection>(std::move(socket), keys);
}

StoreClient::Connection StoreClient::take() {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) throw CommError("store: this client was shut down");
    if (!idle_.empty()) {
      busy_.push_back(std::move(idle_.back()));
      idle_.pop_back();
      return busy_.back();
    }
  }
  Connection fresh = open();
  std::lock_guard lock(mutex_);
  if (stopped_) throw CommError("store: this client was shut down");
  busy_.push_back(fresh);
  return fresh;
}

void StoreClient::give_back(const Connection& connection) {
  std::lock_guard lock(mutex_);
  std::erase(busy_, connection);
  idle_.push_back(connection);
}

void StoreClient::forget(const Connection& connection) {
  std::lock_guard lock(mutex_);
  std::erase(busy_, connection);
}

StoreClient::Answer StoreClient::call(const StoreRequest& request, int fd, Milliseconds wait) {
  check_store_entry(request.key, request.value);
  const Connection connection = take();
  Answer answer;
  try {
    answer = converse(*connection, request, fd, wait);
  } catch (...) {
    forget(connection);  // in the middle of an exchange: of no more use
    throw;
  }
  give_back(connection);
  if (answer.status == StoreStatus::kRefused) throw CommError(answer.body);
  if (answer.status == StoreStatus::kTimeout)
    throw TimeoutError(fmt::format("store: nobody put {} within {} ms", request.key, wait.count()));
  return answer;
}

StoreClient::Answer StoreClient::converse(StoreConnection& connection, const StoreRequest& request, int fd,
                                          Milliseconds wait) {
  const Deadline deadline = deadline_in(wait + options_.answer_timeout);
  const auto check_late = [&] {
    if (has_passed(deadline))
      throw TimeoutError(fmt::format(
          "store at {}: the server does not answer; its process hangs or its host is down", address_));
    if (const auto silence = unanswered_for(connection.fd()))
      throw CommError(fmt::format("store at {}: no answer for {} ms: the host or the network to it is down",
                                  address_, silence->count()));
  };
  // A second at most, then check_late() looks.
  const auto wait_a_while = [&](short events) {
    wait_for(connection.fd(), events, std::min(deadline, deadline_in(Milliseconds(1000))));
  };
  connection.queue(static_cast<uint32_t>(request.op), encode_request_body(request), fd);
  while (!connection.flush()) {
    check_late();
    wait_a_while(POLLOUT);
  }
  for (;;) {
    if (auto frame = connection.next())
      return {static_cast<StoreStatus>(frame->tag), std::move(frame->body), connection.take_passed()};
    if (!connection.fill())
      throw CommError(
          fmt::format("store at {}: the server closed the connection: its process ended", address_));
    if (auto frame = connection.next())
      return {static_cast<StoreStatus>(frame->tag), std::move(frame->body), connection.take_passed()};
    check_late();
    wait_a_while(POLLIN);
  }
}

void StoreClient::put(const std::string& key, const std::string& value) {
  call({StoreOp::kPut, 0, key, value}, -1, Milliseconds(0));
}

std::string StoreClient::get(const std::string& key, Milliseconds timeout) {
  const auto wait = std::clamp(timeout, Milliseconds(0), Milliseconds(UINT32_MAX));
  return call({StoreOp::kGet, static_cast<uint32_t>(wait.count()), key, ""}, -1, wait).body;
}

std::optional<std::string> StoreClient::try_get(const std::string& key) {
  Answer answer = call({StoreOp::kTryGet, 0, key, ""}, -1, Milliseconds(0));
  if (answer.status == StoreStatus::kAbsent) return std::nullopt;
  return std::move(answer.body);
}

int64_t StoreClient::add(const std::string& key, int64_t delta) {
  const std::string sum = call({StoreOp::kAdd, 0, key, fmt::format("{}", delta)}, -1, Milliseconds(0)).body;
  int64_t result = 0;
  const auto [stop, error] = std::from_chars(sum.data(), sum.data() + sum.size(), result);
  if (error != std::errc{}) throw CommError(fmt::format("store: the sum under {} is no number", key));
  return result;
}

void StoreClient::put_fd(const std::string& key, int fd) {
  const UniqueFd copy = duplicate_fd(key, fd);  // a bad descriptor is an error before anything is sent
  if (parse_address(address_).family() != AF_UNIX)
    throw CommError(fmt::format("store at {}: descriptors pass over Unix sockets only ({})", address_, key));
  call({StoreOp::kPutFd, 0, key, ""}, copy.get(), Milliseconds(0));
}

UniqueFd StoreClient::get_fd(const std::string& key, Milliseconds timeout) {
  const auto wait = std::clamp(timeout, Milliseconds(0), Milliseconds(UINT32_MAX));
  UniqueFd fd = call({StoreOp::kGetFd, static_cast<uint32_t>(wait.count()), key, ""}, -1, wait).fd;
  if (!fd.valid())
    throw CommError(
        fmt::format("store: the descriptor of {} did not come along; raise the limit with ulimit -n", key));
  return fd;
}

void StoreClient::announce_on(StoreConnection& connection, StoreOp op, int rank) {
  const StoreRequest request{op, 0, "rank", fmt::format("{}", rank)};
  if (converse(connection, request, -1, Milliseconds(0)).status != StoreStatus::kOk)
    throw CommError(fmt::format("store at {}: rank {} cannot be announced", address_, rank));
}

void StoreClient::announce(int rank) {
  Connection connection;
  {
    std::lock_guard lock(mutex_);
    connection = announcing_;
  }
  if (!connection) connection = take();
  announce_on(*connection, StoreOp::kAnnounce, rank);
  std::lock_guard lock(mutex_);
  announcing_ = connection;
}

void StoreClient::goodbye() {
  Connection connection;
  {
    std::lock_guard lock(mutex_);
    connection = std::exchange(announcing_, nullptr);
  }
  if (!connection) return;
  announce_on(*connection, StoreOp::kGoodbye, -1);
  give_back(connection);
}

void StoreClient::shutdown() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (const auto* list : {&idle_, &busy_})
    for (const Connection& connection : *list) ::shutdown(connection->fd(), SHUT_RDWR);
}

}  // namespace starling
