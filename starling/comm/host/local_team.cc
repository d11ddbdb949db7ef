#include "starling/comm/host/local_team.h"

#include <fmt/format.h>

#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {

using SteadyClock = std::chrono::steady_clock;

LocalTeam::LocalTeam(LocalTeamSetup setup)
    : setup_(std::move(setup)),
      control_(setup_.control),
      staging_(setup_.staging),
      layout_(static_cast<int>(setup_.ranks.size())),
      me_(setup_.local_rank),
      size_(static_cast<int>(setup_.ranks.size())),
      numa_(numa_places(setup_.numa_of, me_)),
      liveness_(*control_, me_, setup_.ranks, setup_.host),
      round_policy_(setup_.policy) {
  liveness_.publish_pid();
  enter(Operation{}, kNowhere, false);
  liveness_.watch();
}

LocalTeam::~LocalTeam() {
  liveness_.leave();
}

void LocalTeam::check_usable() const {
  if (auto failure = liveness_.own()) throw_failure(*failure);
}

void LocalTeam::fail(const Failure& failure) {
  liveness_.fail(failure);
  throw_failure(failure);
}

std::optional<Failure> LocalTeam::trouble(int awaited) {
  if (auto local = liveness_.trouble(awaited)) return local;
  return setup_.outside ? setup_.outside() : std::nullopt;
}

void LocalTeam::await_slowly(FlagLine& flag, uint64_t value, int r, const WaitPolicy& policy,
                             const std::function<std::string()>& late) {
  std::optional<SteadyClock::time_point> deadline, warning;
  std::optional<Failure> failure;
  const bool reached = wait_at_least(flag, value, policy, [&] {
    const auto now = SteadyClock::now();
    if (!deadline) {
      deadline = now + setup_.timeout + extra_patience_.load();
      warning = now + setup_.timeout / 10 + extra_patience_.load();
    }
    if (now >= *warning) {
      warn_late(late());
      warning = SteadyClock::time_point::max();
    }
    failure = trouble(r);
    if (!failure && now >= *deadline)
      failure = Failure{fmt::format("{} within {} ms: late or stopped; see its log, or raise the timeout",
                                    late(), setup_.timeout.count()),
                        liveness_.global_rank(r), true};
    return failure.has_value();
  });
  if (!reached) fail(*failure);
}

void LocalTeam::warn_late(const std::string& what) const {
  if (setup_.warn) setup_.warn(late_warning(what, setup_.timeout));
}

std::string LocalTeam::who_has_not_entered() const {
  std::string names;
  for (int r = 0; r < size_; ++r) {
    if (entry(r).value.load(std::memory_order_acquire) >= round_) continue;
    names += (names.empty() ? "" : ", ") + liveness_.name(r);
  }
  return fmt::format("{} did not enter {}", names, describe(current_));
}

std::string LocalTeam::who_has_not_finished(int r) const {
  return fmt::format("{} entered {} but did not finish its part", liveness_.name(r), describe(current_));
}

void LocalTeam::enter(const Operation& operation, uint64_t where, bool prefilled) {
  check_usable();
  ++round_;
  current_ = operation;
  EntryLine& mine = entry(me_);
  mine.operation = operation;
  mine.where = where;
  mine.prefilled = prefilled ? 1 : 0;
  starling::post(mine, round_);
  for (int r = 0; r < size_; ++r) await(entry(r), round_, r, [this] { return who_has_not_entered(); });
  check_agreement();
  first_chunk_ = next_chunk_;
}

void LocalTeam::check_agreement() {
  const Operation& first = entry(0).operation;
  for (int r = 1; r < size_; ++r) {
    const Operation& other = entry(r).operation;
    if (other == first) continue;
    fail(Failure{mismatch_message(liveness_.name(0), first, liveness_.name(r), other), -1, false});
  }
}

bool LocalTeam::all_in_windows() const {
  for (int r = 0; r < size_; ++r) {
    if (where(r) == kNowhere) return false;
  }
  return true;
}

void LocalTeam::post_stage(Stage stage, uint64_t value) {
  starling::post(block(me_).stage[stage], value);
}

void LocalTeam::await_stage(Stage stage, int r, uint64_t value) {
  await(block(r).stage[stage], value, r, [this, r] { return who_has_not_finished(r); });
}

void LocalTeam::await_stage_all(Stage stage, uint64_t value) {
  for (int r = 0; r < size_; ++r) {
    if (r != me_) await_stage(stage, r, value);
  }
}

// Why relaxed operations suffice: the claim only selects a rank, and the data is ordered by two other flags.
// - One winner. `claim` holds round << 16 | rank. No rank claims parts of the next round before all ranks
//   have left this one, because enter() waits for all of them. So the value never exceeds this round's. If
//   the loaded value is stale, compare_exchange sees the current one and fails. Of all calls for one part
//   and round, exactly one succeeds.
// - Inputs. A rank posts its entry line after it has written its tensor. enter() acquires the entry lines of
//   all ranks before claim() is called, so the winner sees every input and every result of the rounds before.
// - Results. post_part() releases stage[kExit] of the part after its last store. await_parts() acquires this
//   flag of every part, so a rank that leaves the round sees all results, whichever rank stored them.
// - The name of the claimant in await_parts(). A rank has read or written this round's claim in claim()
//   before, and a later load of the same atomic returns no older value. If claim() skipped a part because its
//   owner had failed, an older value may be read: the wait then watches the owner, whose failure ends it.
bool LocalTeam::claim(int part) {
  if (part != me_ && !liveness_.takes_part(part)) return false;
  std::atomic<uint64_t>& claim = block(part).claim;
  uint64_t before = claim.load(std::memory_order_relaxed);
  return before >> 16 < round_ &&
         claim.compare_exchange_strong(before, round_ << 16 | static_cast<uint64_t>(me_),
                                       std::memory_order_relaxed);
}

void LocalTeam::await_parts() {
  for (int part = 0; part < size_; ++part) {
    const uint64_t claim = block(part).claim.load(std::memory_order_relaxed);
    const int claimant = claim >> 16 == round_ ? static_cast<int>(claim & 0xffff) : part;
    await(block(part).stage[kExit], round_, claimant,
          [this, claimant] { return who_has_not_finished(claimant); });
  }
}

void LocalTeam::post(int counter, uint64_t value) {
  STARLING_CHECK(counter >= 0 && counter < LocalSync::kCounters, "there is no LocalSync counter {}", counter);
  starling::post(block(me_).sync[counter], value);
}

uint64_t LocalTeam::peek(int rank, int counter) const {
  STARLING_CHECK(counter >= 0 && counter < LocalSync::kCounters, "there is no LocalSync counter {}", counter);
  return block(rank).sync[counter].value.load(std::memory_order_acquire);
}

void LocalTeam::wait(int rank, int counter, uint64_t value, const std::string& what) {
  STARLING_CHECK(counter >= 0 && counter < LocalSync::kCounters, "there is no LocalSync counter {}", counter);
  await_slowly(block(rank).sync[counter], value, rank, setup_.policy,
               [&] { return fmt::format("{} did not reach {}", liveness_.name(rank), what); });
}

void LocalTeam::free_windows() {
  const std::lock_guard lock(windows_mutex_);
  for (size_t w = 0; w < windows_.size(); ++w) {
    if (!windows_[w]) continue;
    const size_t slot = w % kReleaseSlots;
    const auto turn = static_cast<uint32_t>(w / kReleaseSlots + 1);
    // Only this rank itself could use the pointer again, and it has dropped it.
    std::atomic<uint32_t>& own = block(me_).released[slot];
    if (windows_[w].use_count() == 1 && own.load(std::memory_order_relaxed) + 1 == turn)
      own.store(turn, std::memory_order_release);
    bool by_all = true;
    for (int r = 0; r < size_ && by_all; ++r)
      by_all = block(r).released[slot].load(std::memory_order_acquire) >= turn;
    if (by_all) windows_[w].reset();
  }
}

void LocalTeam::add_window(std::shared_ptr<Window> window) {
  const std::lock_guard lock(windows_mutex_);
  windows_.push_back(std::move(window));
}

uint64_t LocalTeam::locate(const void* data, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(windows_mutex_);
  for (size_t w = 0; w < windows_.size(); ++w) {
    if (!windows_[w]) continue;
    const std::byte* base = windows_[w]->region(0);
    const std::byte* end = base + windows_[w]->bytes() * static_cast<size_t>(size_);
    if (at >= base && at < end && bytes <= static_cast<size_t>(end - at)) {
      return (static_cast<uint64_t>(w) << 48) | static_cast<uint64_t>(at - base);
    }
  }
  return kNowhere;
}

std::byte* LocalTeam::address(uint64_t where) const {
  const std::lock_guard lock(windows_mutex_);
  return windows_[where >> 48]->region(0) + (where & ((uint64_t{1} << 48) - 1));
}

}  // namespace starling
