#include "starling/comm/local_mail.h"

#include "starling/comm/copy_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

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

// What has been read from one peer, and the lock of sending to it.
struct LocalMail::Box : MailBox {
  struct Header {
    uint64_t bytes;
    uint32_t tag;
    uint32_t unused;
  };
  static_assert(sizeof(Header) == 16);

  std::mutex sending;
  uint64_t sent = 0;  // bytes put into the ring to the peer; guarded by `sending`
  // The reader's: bytes taken out of the peer's ring, and the message that is arriving.
  uint64_t taken = 0;
  bool inside = false;
  Header header{};
  uint64_t arrived = 0;
  std::byte* to = nullptr;
  Target* target = nullptr;
  Letter letter;
};

LocalMail::LocalMail(LocalTeam& team, std::shared_ptr<Window> rings)
    : team_(team), rings_(std::move(rings)), ring_(ring_bytes(team.size())) {
  for (int r = 0; r < team.size(); ++r) boxes_.push_back(std::make_unique<Box>());
}

LocalMail::~LocalMail() = default;

void LocalMail::send(const void* data, size_t bytes, int peer, uint32_t tag) {
  team_.check_usable();
  const std::lock_guard lock(boxes_[peer]->sending);
  const Box::Header header{bytes, tag, 0};
  put(peer, &header, sizeof(header));
  put(peer, data, bytes);
  team_.count_written(bytes);
}

void LocalMail::put(int peer, const void* data, size_t bytes) {
  Box& box = *boxes_[peer];
  const auto* from = static_cast<const std::byte*>(data);
  std::byte* ring = this->ring(team_.rank(), peer);
  while (bytes > 0) {
    // Pieces of a quarter of the ring: the receiver copies one while we write the next.
    const uint64_t offset = box.sent % ring_;
    const uint64_t piece = std::min({static_cast<uint64_t>(bytes), ring_ - offset, ring_ / 4});
    await_room(peer, padded(piece));
    copy_bytes(ring + offset, from, piece);
    box.sent += padded(piece);
    starling::post(team_.ring_head(team_.rank(), peer), box.sent);
    from += piece;
    bytes -= piece;
  }
}

void LocalMail::await_room(int peer, uint64_t bytes) {
  const uint64_t end = boxes_[peer]->sent + bytes;
  if (end <= ring_) return;
  FlagLine& tail = team_.ring_tail(peer, team_.rank());
  std::optional<SteadyClock::time_point> deadline;
  std::optional<Failure> failure;
  bool moved = false;
  const auto give_up = [&] {
    moved = take_in_from_all();
    const auto now = SteadyClock::now();
    if (!deadline || moved) deadline = now + team_.timeout();
    if (moved) return true;
    failure = team_.trouble(peer);
    if (!failure && now >= *deadline) {
      failure =
          Failure{fmt::format("{} did not receive what {} sends within {} ms: late or stopped; see its log",
                              team_.liveness().name(peer), team_.liveness().name(team_.rank()),
                              team_.timeout().count()),
                  team_.liveness().global_rank(peer), true};
    }
    return failure.has_value();
  };
  while (!wait_at_least(tail, end - ring_, team_.policy(), give_up)) {
    if (failure) team_.fail(*failure);
  }
}

bool LocalMail::take_in_from_all() {
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

bool LocalMail::take_header(int peer, uint64_t available, Target* target) {
  Box& box = *boxes_[peer];
  if (available < sizeof(Box::Header)) return false;
  copy_bytes(&box.header, ring(peer, team_.rank()) + box.taken % ring_, sizeof(Box::Header));
  box.taken += sizeof(Box::Header);
  box.inside = true;
  box.arrived = 0;
  box.target = target != nullptr && target->tag == box.header.tag && !target->done ? target : nullptr;
  if (box.target != nullptr && target->bytes != box.header.bytes) {
    team_.fail(
        Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                            target->bytes, target->tag, team_.liveness().name(peer), box.header.bytes),
                team_.liveness().global_rank(peer), false});
  }
  if (box.target == nullptr) box.letter = Letter{box.header.tag, std::vector<std::byte>(box.header.bytes)};
  box.to = box.target != nullptr ? target->data : box.letter.bytes.data();
  return true;
}

bool LocalMail::take_in(int peer, Target* target) {
  Box& box = *boxes_[peer];
  const std::byte* ring = this->ring(peer, team_.rank());
  const uint64_t head = team_.ring_head(peer, team_.rank()).value.load(std::memory_order_acquire);
  bool moved = false;
  while (box.taken < head || (box.inside && box.arrived == box.header.bytes)) {
    if (!box.inside && !take_header(peer, head - box.taken, target)) break;
    moved = true;
    const uint64_t offset = box.taken % ring_;
    // Cut as the sender cuts: never across the end of the ring.
    const uint64_t piece = std::min({head - box.taken, box.header.bytes - box.arrived, ring_ - offset});
    if (piece > 0) copy_bytes(box.to + box.arrived, ring + offset, piece);
    box.arrived += piece;
    box.taken += padded(piece);
    starling::post(team_.ring_tail(team_.rank(), peer), box.taken);
    if (box.arrived < box.header.bytes) continue;
    box.inside = false;
    team_.count_read(box.header.bytes);
    if (box.target != nullptr) {
      box.target->done = true;
      return true;
    }
    const std::lock_guard lock(box.mutex);
    box.complete.push_back(std::move(box.letter));
    // It may be what the caller waits for; the message behind it must not take its place.
    if (target != nullptr) return true;
  }
  return moved;
}

void LocalMail::await_bytes(int peer, const Target& target) {
  const auto deadline = SteadyClock::now() + team_.timeout();
  std::optional<Failure> failure;
  FlagLine& head = team_.ring_head(peer, team_.rank());
  const bool reached = wait_at_least(head, boxes_[peer]->taken + 1, team_.policy(), [&] {
    failure = team_.trouble(peer);
    if (!failure && SteadyClock::now() >= deadline) {
      failure = Failure{
          fmt::format("{} did not send {} bytes with tag {} to {} within {} ms: late or stopped; see its log",
                      team_.liveness().name(peer), target.bytes, target.tag,
                      team_.liveness().name(team_.rank()), team_.timeout().count()),
          team_.liveness().global_rank(peer), true};
    }
    return failure.has_value();
  });
  if (!reached) team_.fail(*failure);
}

bool LocalMail::take_complete(Box& box, void* data, size_t bytes, int peer, uint32_t tag) {
  const auto letter = box.take(tag);
  if (!letter) return false;
  if (letter->bytes.size() != bytes) {
    team_.fail(
        Failure{fmt::format("recv of {} bytes with tag {} from {}, which sent {} bytes; both must agree",
                            bytes, tag, team_.liveness().name(peer), letter->bytes.size()),
                team_.liveness().global_rank(peer), false});
  }
  copy_bytes(data, letter->bytes.data(), bytes);
  return true;
}

bool LocalMail::try_recv(void* data, size_t bytes, int peer, uint32_t tag) {
  Box& box = *boxes_[peer];
  std::unique_lock lock(box.mutex);
  if (!box.reading) {
    const ReadingTurn turn(box, lock);
    take_in(peer, nullptr);
  }
  return take_complete(box, data, bytes, peer, tag);
}

void LocalMail::recv(void* data, size_t bytes, int peer, uint32_t tag) {
  team_.check_usable();
  Box& box = *boxes_[peer];
  Target target{tag, static_cast<std::byte*>(data), bytes};
  const auto deadline = SteadyClock::now() + team_.timeout();
  std::unique_lock lock(box.mutex);
  while (!target.done) {
    if (take_complete(box, data, bytes, peer, tag)) return;
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
    // A message for another tag that is half here is completed before ours can begin.
    if (!take_in(peer, &target)) await_bytes(peer, target);
  }
}

}  // namespace starling
