#include "starling/comm/host/liveness.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "starling/base/error.h"

namespace starling {

namespace {

// Returns the number of this process's pid namespace, or 0 if /proc does not say.
uint64_t pid_space() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

void throw_failure(const Failure& failure) {
  if (failure.is_timeout) throw TimeoutError(failure.reason, failure.culprit);
  throw CommError(failure.reason, failure.culprit);
}

Liveness::Liveness(const Window& control, int local_rank, std::vector<int> ranks, std::string host)
    : control_(control), local_rank_(local_rank), ranks_(std::move(ranks)), host_(std::move(host)) {}

void Liveness::publish_pid() {
  state(local_rank_).pid_space.store(pid_space(), std::memory_order_relaxed);
  state(local_rank_).pid.store(static_cast<uint32_t>(getpid()), std::memory_order_release);
}

void Liveness::watch() {
  processes_.resize(ranks_.size());
  const uint64_t own_space = pid_space();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const auto pid = static_cast<pid_t>(state(static_cast<int>(r)).pid.load(std::memory_order_acquire));
    // In another container the number may be that of another process here.
    if (state(static_cast<int>(r)).pid_space.load(std::memory_order_relaxed) != own_space) continue;
    if (pid == 0 || pid == getpid()) continue;
    processes_[r].reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
}

void Liveness::fail(const Failure& failure) {
  RankState& own = state(local_rank_);
  uint32_t alive = static_cast<uint32_t>(RankStatus::kAlive);
  if (!own.status.compare_exchange_strong(alive, static_cast<uint32_t>(RankStatus::kWriting))) return;
  own.culprit = failure.culprit;
  own.is_timeout = failure.is_timeout ? 1 : 0;
  const size_t length = std::min(failure.reason.size(), sizeof(own.reason) - 1);
  std::memcpy(own.reason, failure.reason.data(), length);
  own.reason[length] = '\0';
  own.status.store(static_cast<uint32_t>(RankStatus::kFailed), std::memory_order_release);
}

void Liveness::leave() {
  uint32_t alive = static_cast<uint32_t>(RankStatus::kAlive);
  state(local_rank_).status.compare_exchange_strong(alive, static_cast<uint32_t>(RankStatus::kLeft));
}

std::optional<Failure> Liveness::read(int local_rank) const {
  const RankState& s = state(local_rank);
  if (s.status.load(std::memory_order_acquire) != static_cast<uint32_t>(RankStatus::kFailed))
    return std::nullopt;
  return Failure{s.reason, s.culprit, s.is_timeout != 0};
}

bool Liveness::takes_part(int local_rank) const {
  return state(local_rank).status.load(std::memory_order_acquire) ==
         static_cast<uint32_t>(RankStatus::kAlive);
}

std::optional<Failure> Liveness::own() const {
  return read(local_rank_);
}

std::string Liveness::name(int local_rank) const {
  return fmt::format("rank {} ({})", ranks_[local_rank], host_);
}

std::optional<Failure> Liveness::trouble(int awaited) {
  if (auto mine = own()) return mine;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    if (r == local_rank_) continue;
    if (auto theirs = read(r)) {
      theirs->reason = fmt::format("{} reports: {}", name(r), theirs->reason);
      return theirs;
    }
    const auto status = static_cast<RankStatus>(state(r).status.load(std::memory_order_acquire));
    if (status == RankStatus::kLeft) {
      if (r != awaited) continue;
      return Failure{fmt::format("{} {} while {} waited for it", name(r), kLeftTheGroup, name(local_rank_)),
                     ranks_[r], false};
    }
    if (r >= static_cast<int>(processes_.size()) || !processes_[r].valid()) continue;
    pollfd process{processes_[r].get(), POLLIN, 0};
    if (::poll(&process, 1, 0) > 0) {
      const auto last = static_cast<RankStatus>(state(r).status.load(std::memory_order_acquire));
      if (last != RankStatus::kLeft) {
        return Failure{fmt::format("{} is lost: its process ended; see its log", name(r)), ranks_[r], false};
      }
    }
  }
  return std::nullopt;
}

}  // namespace starling
