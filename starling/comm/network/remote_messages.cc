#include "starling/comm/network/remote_messages.h"

#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/operation.h"

namespace starling {
namespace {

constexpr int kSliceMilliseconds = 20;
constexpr std::chrono::milliseconds kAliveEvery{200};  // between checks whether the peer's host answers

void poll_once(pollfd polled) {
  ::poll(&polled, 1, kSliceMilliseconds);
}

// Attempt is one message in the caller's memory. At the end of the scope it cancels the message unless
// complete() was called.
class Attempt {
 public:
  Attempt(Endpoint& endpoint, void (Endpoint::*cancel)()) : endpoint_(endpoint), cancel_(cancel) {}
  ~Attempt() {
    if (!complete_) (endpoint_.*cancel_)();
  }
  Attempt(const Attempt&) = delete;
  void complete() { complete_ = true; }

 private:
  Endpoint& endpoint_;
  void (Endpoint::*cancel_)();
  bool complete_ = false;
};

}  // namespace

struct RemoteMessages::Box : Inbox {
  int rank = -1;
  Endpoint* endpoint = nullptr;
  std::mutex sending;
  bool inside = false;  // a message is arriving; only the reader uses this
  InboxMessage message;
  std::atomic<Deadline> next_check{Deadline{}};  // of the peer's host
};

RemoteMessages::RemoteMessages(RemoteSetup setup, std::function<void(const Failure&)> on_failure)
    : setup_(std::move(setup)), on_failure_(std::move(on_failure)), boxes_(setup_.endpoints.size()) {
  for (size_t r = 0; r < boxes_.size(); ++r) {
    if (!setup_.endpoints[r]) continue;
    boxes_[r] = std::make_unique<Box>();
    boxes_[r]->rank = static_cast<int>(r);
    boxes_[r]->limit = setup_.inbox_bytes;
    boxes_[r]->endpoint = setup_.endpoints[r].get();
  }
}

RemoteMessages::~RemoteMessages() {
  if (!has_left_) end_all(leave());
}

std::vector<Endpoint*> RemoteMessages::leave() {
  has_left_ = true;
  std::vector<Transfer> arriving;
  for (const auto& box : boxes_)
    if (box && box->inside) arriving.push_back({box->endpoint, std::nullopt, Incoming{}});
  cancel_all(arriving);
  return all_of(setup_.endpoints);
}

void RemoteMessages::abandon() {
  for (const auto& e : setup_.endpoints)
    if (e) e->shutdown();
}

std::string RemoteMessages::name(int rank) const {
  return fmt::format("rank {} ({})", rank, setup_.host_names[rank]);
}

uint64_t RemoteMessages::sent() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->payload_sent() : 0;
  return sum;
}

uint64_t RemoteMessages::received() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->payload_received() : 0;
  return sum;
}

void RemoteMessages::fail(const Failure& failure) {
  on_failure_(failure);
  abandon();
  throw_failure(failure);
}

Failure RemoteMessages::explained(const CommError& error) const {
  const Failure found{error.what(), error.peer(), error.code() == ErrorCode::kTimeout};
  return setup_.notes ? setup_.notes->explain(found, setup_.endpoints) : found;
}

template <typename Call>
auto RemoteMessages::on_wire(const Call& call) {
  try {
    return call();
  } catch (const CommError& error) {
    fail(explained(error));
  }
}

void RemoteMessages::check_patience(int peer, Patience& patience, const std::string& what) {
  if (auto failure = setup_.outside ? setup_.outside() : std::nullopt) fail(*failure);
  if (has_passed(boxes_[peer]->next_check.load())) {
    boxes_[peer]->next_check = deadline_in(kAliveEvery);
    on_wire([&] { boxes_[peer]->endpoint->check_alive(); });
  }
  if (setup_.warn && has_passed(patience.deadline - setup_.timeout + setup_.timeout / 10) &&
      !std::exchange(patience.warned, true))
    setup_.warn(late_warning(fmt::format("{} did not {}", name(peer), what), setup_.timeout));
  if (!has_passed(patience.deadline)) return;
  fail(Failure{fmt::format("{} did not {} within {} ms: late or stopped; see its log, or raise the timeout",
                           name(peer), what, setup_.timeout.count()),
               peer, true});
}

void RemoteMessages::check_size(const Box& box, uint64_t got, size_t expected, uint32_t tag) {
  if (got == expected) return;
  fail(Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                           expected, tag, name(box.rank), got),
               box.rank});
}

bool RemoteMessages::take_in(Box& box) {
  Endpoint& e = *box.endpoint;
  if (!box.inside) {
    const auto info = e.step_peek();
    if (!info || !box.has_room(info->bytes)) return false;
    box.message = make_inbox_message(info->tag, info->bytes, name(box.rank), box.rank);
    e.begin_recv({.tag = info->tag, .head = {}, .body = box.message.bytes, .kind = info->kind});
    box.inside = true;
  }
  if (!e.step_recv()) return false;
  box.inside = false;
  const std::lock_guard lock(box.mutex);
  box.add(std::move(box.message));
  return true;
}

bool RemoteMessages::take_in_from_all() {
  bool moved = false;
  for (const auto& box : boxes_) {
    if (!box) continue;
    std::unique_lock lock(box->mutex, std::try_to_lock);
    if (!lock.owns_lock() || box->reading) continue;
    const ReadingTurn turn(*box, lock);
    try {
      moved = take_in(*box) || moved;
    } catch (const CommError&) {
      // The connection ended, because a peer may leave after its last message. A thread that receives from
      // this peer reports the end.
    }
  }
  return moved;
}

void RemoteMessages::send(const void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  const std::lock_guard lock(box.sending);
  Patience patience{deadline_in(setup_.timeout)};
  Deadline next_check = deadline_in(std::chrono::milliseconds(kSliceMilliseconds));
  Attempt attempt(*box.endpoint, &Endpoint::cancel_send);
  on_wire([&] {
    box.endpoint->begin_send({.tag = tag,
                              .head = {},
                              .body = {static_cast<const std::byte*>(data), bytes},
                              .kind = MessageKind::kData});
  });
  while (!on_wire([&] { return box.endpoint->step_send(); })) {
    if (take_in_from_all()) continue;
    poll_once(box.endpoint->send_poll());
    if (!has_passed(next_check)) continue;
    check_patience(peer, patience, fmt::format("receive {} bytes with tag {}", bytes, tag));
    next_check = deadline_in(std::chrono::milliseconds(kSliceMilliseconds));
  }
  attempt.complete();
}

bool RemoteMessages::take_one(Box& box, void* data, size_t bytes, uint32_t tag, Patience& patience) {
  Endpoint& e = *box.endpoint;
  const auto patient = [&] {
    poll_once({e.poll_fd(), POLLIN, 0});
    check_patience(box.rank, patience, fmt::format("send {} bytes with tag {}", bytes, tag));
  };
  const auto wait_for_room = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the socket is readable all the time
    if (has_passed(patience.deadline))
      fail(Failure{
          fmt::format("{} bytes with tag {} of {} are behind {} bytes with other tags, which no thread "
                      "received within {} ms; receive the other tags first, or raise "
                      "GroupOptions::inbox_bytes",
                      bytes, tag, name(box.rank), setup_.inbox_bytes, setup_.timeout.count()),
          box.rank, true});
    check_patience(box.rank, patience, fmt::format("send {} bytes with tag {}", bytes, tag));
  };
  if (!box.inside) {
    auto info = on_wire([&] { return e.step_peek(); });
    for (; !info; info = on_wire([&] { return e.step_peek(); })) patient();
    if (info->tag == tag) {
      check_size(box, info->bytes, bytes, tag);
      Attempt attempt(e, &Endpoint::cancel_recv);
      on_wire([&] {
        e.begin_recv(
            {.tag = tag, .head = {}, .body = {static_cast<std::byte*>(data), bytes}, .kind = info->kind});
      });
      while (!on_wire([&] { return e.step_recv(); })) patient();
      attempt.complete();
      return true;
    }
  }
  while (!on_wire([&] { return take_in(box); })) {
    if (box.inside) {
      patient();
    } else {
      wait_for_room();
      return false;  // another thread may have taken the awaited message
    }
  }
  return false;
}

bool RemoteMessages::take_complete(Box& box, void* data, size_t bytes, uint32_t tag) {
  const auto message = box.take(tag);
  if (!message) return false;
  check_size(box, message->bytes.size(), bytes, tag);
  if (bytes > 0) std::memcpy(data, message->bytes.data(), bytes);
  return true;
}

bool RemoteMessages::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  std::unique_lock lock(box.mutex);
  if (take_complete(box, data, bytes, tag)) return true;
  try {
    if (!box.reading) {
      const ReadingTurn turn(box, lock);
      while (take_in(box)) continue;
    }
    if (take_complete(box, data, bytes, tag)) return true;
    // The caller waits for this peer by calling try_recv() again.
    if (has_passed(box.next_check.load())) {
      box.next_check = deadline_in(kAliveEvery);
      box.endpoint->check_alive();
    }
  } catch (const CommError& error) {  // the group goes on, because the caller may do without this peer
    throw_failure(explained(error));
  }
  return false;
}

void RemoteMessages::recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  Patience patience{deadline_in(setup_.timeout)};
  std::unique_lock lock(box.mutex);
  for (;;) {
    if (take_complete(box, data, bytes, tag)) return;
    if (box.reading) {
      box.changed.wait_for(lock, std::chrono::milliseconds(kSliceMilliseconds));
      check_patience(peer, patience, fmt::format("send {} bytes with tag {}", bytes, tag));
      continue;
    }
    const ReadingTurn turn(box, lock);
    if (take_one(box, data, bytes, tag, patience)) return;
  }
}

}  // namespace starling
