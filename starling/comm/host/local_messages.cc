#include "starling/comm/host/local_messages.h"

#include "starling/comm/reduce/copy_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr uint64_t padded(uint64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

using SteadyClock = std::chrono::steady_clock;

}  // namespace

size_t ring_bytes(int local_size) {
  return std::clamp<size_t>(4 * 1024 * 1024 / static_cast<size_t>(local_size), 16 * 1024, 256 * 1024) / 4096 *
         4096;
}

// Box holds what this rank has read from one peer, and the lock of sending to that peer.
struct LocalMessages::Box : Inbox {
  struct Header {
    uint64_t bytes;
    uint32_t tag;
    uint32_t unused;
  };
  static_assert(sizeof(Header) == 16);

  std::mutex sending;
  uint64_t sent = 0;  // bytes put into the ring to the peer; guarded by `sending`
  // Only the reader uses the members below: the bytes taken out of the peer's ring, and the message that is
  // arriving.
  uint64_t taken = 0;
  bool inside = false;
  bool full = false;  // the next message must wait until a thread receives earlier ones (inbox.h)
  bool cut = false;   // the receiver of the message that was arriving has failed, so nothing more is taken
  Header header{};
  uint64_t arrived = 0;
  std::byte* to = nullptr;
  Target* target = nullptr;
  InboxMessage message;
};

LocalMessages::LocalMessages(LocalTeam& team, std::shared_ptr<Window> rings, uint64_t inbox_bytes)
    : team_(team), rings_(std::move(rings)), ring_(ring_bytes(team.size())) {
  for (int r = 0; r < team.size(); ++r) boxes_.emplace_back(std::make_unique<Box>())->limit = inbox_bytes;
}

LocalMessages::~LocalMessages() = default;

void LocalMessages::send(const void* data, size_t bytes, int peer, uint32_t tag, const WaitPolicy& waiting) {
  team_.check_usable();
  const std::lock_guard lock(boxes_[peer]->sending);
  const Box::Header header{bytes, tag, 0};
  put(peer, &header, sizeof(header), waiting);
  put(peer, data, bytes, waiting);
  team_.count_published(bytes);
}

void LocalMessages::put(int peer, const void* data, size_t bytes, const WaitPolicy& waiting) {
  Box& box = *boxes_[peer];
  const auto* from = static_cast<const std::byte*>(data);
  std::byte* ring = this->ring(team_.rank(), peer);
  while (bytes > 0) {
    // A piece is a quarter of the ring, so that the receiver copies one piece while this rank writes the
    // next.
    const uint64_t offset = box.sent % ring_;
    const uint64_t piece = std::min({static_cast<uint64_t>(bytes), ring_ - offset, ring_ / 4});
    await_room(peer, padded(piece), waiting);
    copy_bytes(ring + offset, from, piece);
    box.sent += padded(piece);
    starling::post(team_.ring_head(team_.rank(), peer), box.sent);
    from += piece;
    bytes -= piece;
  }
}

void LocalMessages::await_room(int peer, uint64_t bytes, const WaitPolicy& waiting) {
  const uint64_t end = boxes_[peer]->sent + bytes;
  if (end <= ring_) return;
  FlagLine& tail = team_.ring_tail(peer, team_.rank());
  std::optional<SteadyClock::time_point> deadline;
  std::optional<Failure> failure;
  bool moved = false, warned = false;
  const auto late = [&] {
    return fmt::format("{} did not receive what {} sends", team_.liveness().name(peer),
                       team_.liveness().name(team_.rank()));
  };
  const auto give_up = [&] {
    moved = take_in_from_all();
    const auto now = SteadyClock::now();
    if (!deadline || moved) deadline = now + team_.timeout();
    if (moved) return true;
    failure = team_.trouble(peer);
    if (!failure) failure = check_patience(peer, *deadline, warned, late);
    return failure.has_value();
  };
  while (!wait_at_least(tail, end - ring_, waiting, give_up)) {
    if (failure) team_.fail(*failure);
  }
}

bool LocalMessages::take_in_from_all() {
  bool moved = false;
  for (int r = 0; r < team_.size(); ++r) {
    if (r == team_.rank()) continue;
    Box& box = *boxes_[r];
    std::unique_lock lock(box.mutex, std::try_to_lock);
    if (!lock.owns_lock() || box.reading) continue;
    const ReadingTurn turn(box, lock);
    moved = take_in(r, nullptr) || moved;
  }
  return moved;
}

InboxMessage LocalMessages::make_message(int peer, uint32_t tag, uint64_t bytes) {
  const int rank = team_.liveness().global_rank(peer);
  try {
    return make_inbox_message(tag, bytes, team_.liveness().name(peer), rank);
  } catch (const CommError& error) {
    team_.fail(Failure{error.what(), rank, false});
  }
}

bool LocalMessages::take_header(int peer, uint64_t available, Target* target) {
  Box& box = *boxes_[peer];
  if (available < sizeof(Box::Header)) return false;
  copy_bytes(&box.header, ring(peer, team_.rank()) + box.taken % ring_, sizeof(Box::Header));
  const bool awaited = target != nullptr && target->tag == box.header.tag && !target->done;
  box.full = !awaited && !box.has_room(box.header.bytes);
  if (box.full) return false;
  box.taken += sizeof(Box::Header);
  box.inside = true;
  box.arrived = 0;
  box.target = awaited ? target : nullptr;
  if (box.target != nullptr && target->bytes != box.header.bytes) {
    team_.fail(
        Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                            target->bytes, target->tag, team_.liveness().name(peer), box.header.bytes),
                team_.liveness().global_rank(peer), false});
  }
  if (box.target == nullptr) box.message = make_message(peer, box.header.tag, box.header.bytes);
  box.to = box.target != nullptr ? target->data : box.message.bytes.data();
  return true;
}

bool LocalMessages::take_in(int peer, Target* target) {
  Box& box = *boxes_[peer];
  const std::byte* ring = this->ring(peer, team_.rank());
  const uint64_t head = team_.ring_head(peer, team_.rank()).value.load(std::memory_order_acquire);
  bool moved = box.full = false;
  if (box.cut) return false;
  while (box.taken < head || (box.inside && box.arrived == box.header.bytes)) {
    if (!box.inside && !take_header(peer, head - box.taken, target)) break;
    moved = true;
    const uint64_t offset = box.taken % ring_;
    // The receiver cuts a message as the sender does: a piece never crosses the end of the ring.
    const uint64_t piece = std::min({head - box.taken, box.header.bytes - box.arrived, ring_ - offset});
    if (piece > 0) copy_bytes(box.to + box.arrived, ring + offset, piece);
    box.arrived += piece;
    box.taken += padded(piece);
    starling::post(team_.ring_tail(team_.rank(), peer), box.taken);
    if (box.arrived < box.header.bytes) continue;
    box.inside = false;
    team_.count_received(box.header.bytes);
    if (box.target != nullptr) {
      box.target->done = true;
      return true;
    }
    const std::lock_guard lock(box.mutex);
    box.add(std::move(box.message));
    // This may be the message that the caller awaits. The next message must not overtake it.
    if (target != nullptr) return true;
  }
  return moved;
}

std::optional<Failure> LocalMessages::check_patience(int peer, SteadyClock::time_point deadline, bool& warned,
                                                     const std::function<std::string()>& late) const {
  const auto now = SteadyClock::now();
  const auto timeout = team_.timeout();
  if (now >= deadline - timeout + timeout / 10 && !std::exchange(warned, true)) team_.warn_late(late());
  if (now < deadline) return std::nullopt;
  return Failure{fmt::format("{} within {} ms: late or stopped; see its log", late(), timeout.count()),
                 team_.liveness().global_rank(peer), true};
}

void LocalMessages::await_bytes(int peer, Target& target, const WaitPolicy& waiting) {
  const auto deadline = SteadyClock::now() + team_.timeout();
  std::optional<Failure> failure;
  const auto late = [&] {
    return fmt::format("{} did not send {} bytes with tag {} to {}", team_.liveness().name(peer),
                       target.bytes, target.tag, team_.liveness().name(team_.rank()));
  };
  FlagLine& head = team_.ring_head(peer, team_.rank());
  const bool reached = wait_at_least(head, boxes_[peer]->taken + 1, waiting, [&] {
    failure = team_.trouble(peer);
    if (!failure) failure = check_patience(peer, deadline, target.warned, late);
    return failure.has_value();
  });
  if (!reached) team_.fail(*failure);
}

bool LocalMessages::take_complete(Box& box, void* data, size_t bytes, int peer, uint32_t tag) {
  const auto message = box.take(tag);
  if (!message) return false;
  if (message->bytes.size() != bytes) {
    team_.fail(
        Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                            bytes, tag, team_.liveness().name(peer), message->bytes.size()),
                team_.liveness().global_rank(peer), false});
  }
  copy_bytes(data, message->bytes.data(), bytes);
  return true;
}

bool LocalMessages::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  std::unique_lock lock(box.mutex);
  if (!box.reading) {
    const ReadingTurn turn(box, lock);
    take_in(peer, nullptr);
  }
  return take_complete(box, data, bytes, peer, tag);
}

void LocalMessages::recv(void* data, size_t bytes, int peer, uint32_t tag, const WaitPolicy& waiting) {
  team_.check_usable();
  Box& box = *boxes_[peer];
  Target target{tag, static_cast<std::byte*>(data), bytes};
  std::unique_lock lock(box.mutex);
  try {
    receive(peer, target, waiting, lock);
  } catch (...) {
    // The caller may free `data` now. No thread may write the rest of a message there.
    box.changed.wait(lock, [&] { return !box.reading; });
    box.cut = box.cut || (box.inside && box.target == &target);
    throw;
  }
}

void LocalMessages::receive(int peer, Target& target, const WaitPolicy& waiting,
                            std::unique_lock<std::mutex>& lock) {
  Box& box = *boxes_[peer];
  const size_t bytes = target.bytes;
  const uint32_t tag = target.tag;
  const auto deadline = SteadyClock::now() + team_.timeout();
  while (!target.done) {
    if (take_complete(box, target.data, bytes, peer, tag)) return;
    if (box.reading) {
      box.changed.wait_for(lock, std::chrono::milliseconds(20));
      team_.check_usable();
      if (SteadyClock::now() >= deadline + std::chrono::milliseconds(100)) {
        team_.fail(Failure{fmt::format("{} did not send {} bytes with tag {} within {} ms",
                                       team_.liveness().name(peer), bytes, tag, team_.timeout().count()),
                           team_.liveness().global_rank(peer), true});
      }
      continue;
    }
    const ReadingTurn turn(box, lock);
    // A message with another tag may have arrived in part. It is completed before the awaited message can
    // begin.
    if (take_in(peer, &target)) continue;
    if (!box.full) {
      await_bytes(peer, target, waiting);
      continue;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the ring has bytes all the time
    if (SteadyClock::now() >= deadline)
      team_.fail(Failure{
          fmt::format(
              "{} bytes with tag {} of {} are behind {} bytes with other tags, which no thread "
              "received within {} ms; receive the other tags first, or raise GroupOptions::inbox_bytes",
              bytes, tag, team_.liveness().name(peer), box.limit, team_.timeout().count()),
          team_.liveness().global_rank(peer), true});
    team_.check_usable();
  }
}

}  // namespace starling
