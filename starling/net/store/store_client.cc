#include "starling/net/store/store_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>

#include "starling/base/error.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_endpoint.h"

namespace starling {
namespace {

constexpr Milliseconds kCheckEvery{200};  // between checks whether the server's host answers

// Tries to connect. Returns false, with the reason in `why`, if no server listens there yet.
bool try_connect(std::span<const SocketAddress> addresses, Deadline deadline, Milliseconds dead_after,
                 UniqueFd& socket, std::string& why) {
  try {
    socket = connect_to_any(addresses, deadline, dead_after);
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
    : address_(address),
      identity_(identity),
      options_(options),
      settings_(make_tls_settings(HandshakeRole::kClient)) {
  idle_.push_back(open());
}

StoreClient::~StoreClient() = default;

StoreClient::Connection StoreClient::open() {
  const Deadline deadline = deadline_in(options_.connect_timeout);
  const std::vector<SocketAddress> addresses = parse_addresses(address_);
  UniqueFd socket;
  std::string why;
  Milliseconds pause{10};
  while (!try_connect(addresses, deadline, identity_.dead_after, socket, why)) {
    if (deadline_in(pause) >= deadline)
      throw TimeoutError(
          fmt::format("store: no server within {} ms; {}", options_.connect_timeout.count(), why));
    // A client cannot wait for a server that starts later, so it tries again after a pause.
    (void)::poll(nullptr, 0, static_cast<int>(pause.count()));
    pause = std::min(2 * pause, Milliseconds(200));
  }
  check_same_user(socket.get());
  const ConnectionKeys keys =
      greet(socket.get(), identity_, store_parties(), "store at " + address_, deadline, settings_);
  return std::make_shared<StoreConnection>(std::move(socket), keys);
}

StoreClient::Connection StoreClient::take() {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) throw CommError("store: this client was shut down");
    if (!gone_.empty()) throw CommError(gone_);
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
  } catch (const CommError& error) {
    forget(connection);           // the exchange was interrupted, so the connection is unusable
    const bool passes = fd >= 0;  // a lack of descriptors is no fault of the server
    const std::lock_guard lock(mutex_);
    if (error.code() != ErrorCode::kTimeout && !stopped_ && !passes) gone_ = error.what();
    throw;
  }
  give_back(connection);
  if (answer.status == StoreStatus::kRefused) throw CommError(answer.body);
  if (answer.status == StoreStatus::kTimeout) {
    // The answer to a gather says which of its keys is absent.
    const int absent = answer.body.empty() ? -1 : std::atoi(answer.body.c_str());
    throw TimeoutError(
        fmt::format("store: key {}{} was not set within {} ms", request.key, answer.body, wait.count()),
        absent);
  }
  return answer;
}

StoreClient::Answer StoreClient::converse(StoreConnection& connection, const StoreRequest& request, int fd,
                                          Milliseconds wait) {
  const Deadline deadline = deadline_in(wait + options_.answer_timeout);
  const auto check_late = [&] {
    if (has_passed(deadline))
      throw TimeoutError(fmt::format(
          "store at {}: the server does not answer; its process hangs or its host is down", address_));
    if (const auto silence = unanswered_for(connection.fd(), identity_.dead_after))
      throw CommError(fmt::format("store at {}: no answer for {} ms: the host or the network to it is down",
                                  address_, silence->count()));
  };
  // Waits for at most kCheckEvery. Then check_late() looks.
  const auto wait_a_while = [&](short events) {
    wait_for(connection.fd(), events, std::min(deadline, deadline_in(kCheckEvery)));
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

std::string StoreClient::put_if_absent(const std::string& key, const std::string& value) {
  return call({StoreOp::kPutIfAbsent, 0, key, value}, -1, Milliseconds(0)).body;
}

void StoreClient::erase(const std::string& prefix) {
  call({StoreOp::kErase, 0, prefix, ""}, -1, Milliseconds(0));
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

std::vector<std::string> StoreClient::gather(const std::string& prefix, int count, Milliseconds timeout) {
  const auto wait = std::clamp(timeout, Milliseconds(0), Milliseconds(UINT32_MAX));
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(count));
  while (static_cast<int>(values.size()) < count) {
    const StoreRequest request{StoreOp::kGather, static_cast<uint32_t>(wait.count()), prefix,
                               fmt::format("{} {}", values.size(), count)};
    std::vector<std::string> more = unpack_texts(call(request, -1, wait).body);
    if (more.empty() || values.size() + more.size() > static_cast<size_t>(count))
      throw CommError(fmt::format("store at {}: a wrong number of values of {}", address_, prefix));
    std::move(more.begin(), more.end(), std::back_inserter(values));
  }
  return values;
}

std::map<std::string, std::string> StoreClient::list(const std::string& prefix) {
  std::map<std::string, std::string> all;
  std::string last;
  for (bool more = true; more;) {
    const Answer answer = call({StoreOp::kList, 0, prefix, last}, -1, Milliseconds(0));
    const auto texts = unpack_texts(answer.body);
    for (size_t i = 0; i + 1 < texts.size(); i += 2) all[texts[i]] = texts[i + 1];
    more = answer.status == StoreStatus::kMore && texts.size() > 1;
    if (more) last = texts[texts.size() - 2];
  }
  return all;
}

int64_t StoreClient::add(const std::string& key, int64_t delta) {
  const std::string sum = call({StoreOp::kAdd, 0, key, fmt::format("{}", delta)}, -1, Milliseconds(0)).body;
  int64_t result = 0;
  const auto [stop, error] = std::from_chars(sum.data(), sum.data() + sum.size(), result);
  if (error != std::errc{}) throw CommError(fmt::format("store: the sum under {} is not a number", key));
  return result;
}

void StoreClient::put_fd(const std::string& key, int fd, int readers) {
  const UniqueFd copy = duplicate_fd(key, fd);  // a bad descriptor fails before anything is sent
  if (parse_address(address_).family() != AF_UNIX)
    throw CommError(fmt::format("store at {}: descriptors pass over Unix sockets only ({})", address_, key));
  call({StoreOp::kPutFd, 0, key, fmt::format("{}", readers)}, copy.get(), Milliseconds(0));
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
