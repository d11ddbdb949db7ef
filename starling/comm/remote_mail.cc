#include "starling/comm/remote_mail.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstring>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int kSliceMilliseconds = 20;

void poll_once(pollfd polled) {
  ::poll(&polled, 1, kSliceMilliseconds);
}

// A message in the caller's memory: given up at the end of the scope unless it is complete by then.
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

struct RemoteMail::Box : MailBox {
  int rank = -1;
  Endpoint* endpoint = nullptr;
  std::mutex sending;
  bool inside = false;  // a letter is arriving; the reader's
  Letter letter;
};

RemoteMail::RemoteMail(RemoteSetup setup, std::function<void(const Failure&)> on_failure)
    : setup_(std::move(setup)), on_failure_(std::move(on_failure)), boxes_(setup_.endpoints.size()) {
  for (size_t r = 0; r < boxes_.size(); ++r) {
    if (!setup_.endpoints[r]) continue;
    boxes_[r] = std::make_unique<Box>();
    boxes_[r]->rank = static_cast<int>(r);
    boxes_[r]->endpoint = setup_.endpoints[r].get();
  }
}

RemoteMail::~RemoteMail() {
  if (!has_left_) end_all(leave());
}

std::vector<Endpoint*> RemoteMail::leave() {
  has_left_ = true;
  std::vector<Transfer> arriving;
  for (const auto& box : boxes_)
    if (box && box->inside) arriving.push_back({box->endpoint, std::nullopt, Incoming{}});
  cancel_all(arriving);
  return all_of(setup_.endpoints);
}

std::string RemoteMail::name(int rank) const {
  return fmt::format("rank {} ({})", rank, setup_.host_names[rank]);
}

uint64_t RemoteMail::sent() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->socket_sent() : 0;
  return sum;
}

uint64_t RemoteMail::received() const {
  uint64_t sum = 0;
  for (const auto& e : setup_.endpoints) sum += e ? e->socket_received() : 0;
  return sum;
}

void RemoteMail::fail(const Failure& failure) {
  on_failure_(failure);
  throw_failure(failure);
}

template <typename Call>
auto RemoteMail::on_wire(const Call& call) {
  try {
    return call();
  } catch (const CommError& error) {
    const Failure found{error.what(), error.peer(), error.code() == ErrorCode::kTimeout};
    fail(setup_.notes ? setup_.notes->explain(found) : found);
  }
}

void RemoteMail::check_patience(int peer, Deadline deadline, const std::string& what) {
  if (auto failure = setup_.outside ? setup_.outside() : std::nullopt) fail(*failure);
  if (!has_passed(deadline)) return;
  fail(Failure{fmt::format("{} did not {} within {} ms: late or stopped; see its log, or raise the timeout",
                           name(peer), what, setup_.timeout.count()),
               peer, true});
}

void RemoteMail::check_size(const Box& box, uint64_t got, size_t expected, uint32_t tag) {
  if (got == expected) return;
  fail(Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                           expected, tag, name(box.rank), got),
               box.rank});
}

bool RemoteMail::take_in(Box& box) {
  Endpoint& e = *box.endpoint;
  if (!box.inside) {
    const auto info = e.step_peek();
    if (!info) return false;
    box.letter = Letter{info->tag, std::vector<std::byte>(info->bytes)};
    e.begin_recv({.tag = info->tag, .head = {}, .body = box.letter.bytes, .kind = info->kind});
    box.inside = true;
  }
  if (!e.step_recv()) return false;
  box.inside = false;
  const std::lock_guard lock(box.mutex);
  box.complete.push_back(std::move(box.letter));
  return true;
}

bool RemoteMail::take_in_from_all() {
  bool moved = false;
  for (const auto& box : boxes_) {
    if (!box) continue;
    std::unique_lock lock(box->mutex, std::try_to_lock);
    if (!lock.owns_lock() || box->reading) continue;
    const ReadingTurn turn(*box, lock);
    try {
      moved = take_in(*box) || moved;
    } catch (const CommError&) {
      // The connection ended: for who receives from it to report. A peer may leave when it has sent its last message.
    }
  }
  return moved;
}

void RemoteMail::send(const void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  const std::lock_guard lock(box.sending);
  const Deadline deadline = deadline_in(setup_.timeout);
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
    check_patience(peer, deadline, fmt::format("receive {} bytes with tag {}", bytes, tag));
    next_check = deadline_in(std::chrono::milliseconds(kSliceMilliseconds));
  }
  attempt.complete();
}

bool RemoteMail::take_one(Box& box, void* data, size_t bytes, uint32_t tag, Deadline deadline) {
  Endpoint& e = *box.endpoint;
  const auto patient = [&] {
    poll_once({e.poll_fd(), POLLIN, 0});
    check_patience(box.rank, deadline, fmt::format("send {} bytes with tag {}", bytes, tag));
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
  while (!on_wire([&] { return take_in(box); })) patient();
  return false;
}

bool RemoteMail::take_complete(Box& box, void* data, size_t bytes, uint32_t tag) {
  const auto letter = box.take(tag);
  if (!letter) return false;
  check_size(box, letter->bytes.size(), bytes, tag);
  if (bytes > 0) std::memcpy(data, letter->bytes.data(), bytes);
  return true;
}

bool RemoteMail::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  std::unique_lock lock(box.mutex);
  if (take_complete(box, data, bytes, tag)) return true;
  if (!box.reading) {
    const ReadingTurn turn(box, lock);
    while (take_in(box)) continue;
  }
  return take_complete(box, data, bytes, tag);
}

void RemoteMail::recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  const Deadline deadline = deadline_in(setup_.timeout);
  std::unique_lock lock(box.mutex);
  for (;;) {
    if (take_complete(box, data, bytes, tag)) return;
    if (box.reading) {
      box.changed.wait_for(lock, std::chrono::milliseconds(kSliceMilliseconds));
      check_patience(peer, deadline, fmt::format("send {} bytes with tag {}", bytes, tag));
      continue;
    }
    const ReadingTurn turn(box, lock);
    if (take_one(box, data, bytes, tag, deadline)) return;
  }
}

}  // namespace starling
