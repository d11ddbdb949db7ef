#include "starling/parallel/meetings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {

Meetings::Meetings(int rank, int size) : rank_(rank), size_(size) {
  STARLING_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

void Meetings::tell_all(MeetingKind kind, int64_t step) {
  for (int other = 1; other < size_; ++other) outgoing_.push_back({other, {kind, step}});
}

void Meetings::finish_step(int64_t step, bool asks) {
  next_ = step;
  if (!asks || asked_ || stop_at_ >= step) return;
  if (rank_ == 0) return halt_all();
  asked_ = true;
  outgoing_.push_back({0, {MeetingKind::kAsk, step}});
}

void Meetings::arrive(int64_t step) {
  next_ = step + 1;
  waits_ = true;
  if (rank_ == 0) return count_arrival();
  outgoing_.push_back({0, {MeetingKind::kArrived, step}});
}

// Rank 0 asks all ranks, this one included, for their steps.
void Meetings::halt_all() {
  if (halted_) return;
  halted_ = true;
  answers_ = 0;
  latest_ = 0;
  tell_all(MeetingKind::kHalt, 0);
  take_step(next_);
}

void Meetings::take_step(int64_t step) {
  latest_ = std::max(latest_, step);
  if (++answers_ < size_) return;
  stop_at_ = latest_;
  halted_ = false;
  tell_all(MeetingKind::kStopAt, stop_at_);
}

void Meetings::count_arrival() {
  if (++arrived_ < size_) return;
  arrived_ = 0;
  waits_ = false;
  tell_all(MeetingKind::kGo, 0);
}

void Meetings::receive(int from, const MeetingMessage& message) {
  switch (message.kind) {
    case MeetingKind::kAsk:
      // If the ranks are agreeing on a step already, the step is no earlier than that of the asking rank.
      return halt_all();
    case MeetingKind::kHalt:
      halted_ = true;
      outgoing_.push_back({0, {MeetingKind::kStep, next_}});
      return;
    case MeetingKind::kStep:
      return take_step(message.step);
    case MeetingKind::kStopAt:
      stop_at_ = message.step;
      halted_ = asked_ = false;
      return;
    case MeetingKind::kArrived:
      return count_arrival();
    case MeetingKind::kGo:
      waits_ = false;
      return;
  }
  throw CommError(
      fmt::format(
          "rank {} sent the unknown message {} about a meeting; all ranks must run one version of the "
          "program",
          from, static_cast<int64_t>(message.kind)),
      from);
}

std::vector<Meetings::Outgoing> Meetings::take_outgoing() {
  return std::exchange(outgoing_, {});
}

std::string Meetings::state() const {
  std::string text = fmt::format("{} {} {}{}{} {} {} {}", next_, stop_at_, halted_ ? 1 : 0, waits_ ? 1 : 0,
                                 asked_ ? 1 : 0, arrived_, answers_, latest_);
  for (const Outgoing& out : outgoing_)
    text += fmt::format(";{} {} {}", out.to, static_cast<int64_t>(out.message.kind), out.message.step);
  return text;
}

}  // namespace starling
