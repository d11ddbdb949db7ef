#include "starling/lbfgs/portions.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kMostCopies = 2;  // of one portion, the first included

}  // namespace

int count_portions(const PortionRules& rules) {
  if (rules.ranks < 1 || rules.per_rank < 1 || rules.samples < 1)
    throw ConfigError("--portions",
                      fmt::format("{} portions of {} samples for each of {} ranks: use at least "
                                  "1 of each",
                                  rules.per_rank, rules.samples, rules.ranks));
  if (rules.equal) return rules.ranks;
  const int64_t portions = std::min(int64_t{rules.ranks} * rules.per_rank, rules.samples);
  if (portions > std::numeric_limits<int>::max())
    throw ConfigError("--portions",
                      fmt::format("{} portions of all ranks are too many; use at most {} per rank", portions,
                                  std::numeric_limits<int>::max() / rules.ranks));
  return static_cast<int>(portions);
}

PortionScheduler::PortionScheduler(const PortionRules& rules)
    : rules_(rules), portions_(count_portions(rules)) {
  counts_.delivered.assign(static_cast<size_t>(rules.ranks), 0);
  begin();
}

void PortionScheduler::begin() {
  states_.assign(static_cast<size_t>(portions_), {});
  handed_out_.clear();
  fresh_ = finished_ = 0;
}

std::optional<int> PortionScheduler::next(int rank) {
  if (rules_.equal) {
    State& own = states_[static_cast<size_t>(rank)];
    if (own.finished) return std::nullopt;
    if (own.holders.empty()) own.holders.push_back(rank);
    return rank;
  }
  if (fresh_ < portions_) {
    const int portion = fresh_++;
    states_[static_cast<size_t>(portion)].holders.push_back(rank);
    handed_out_.push_back(portion);
    return portion;
  }
  if (!rules_.backups) return std::nullopt;
  const std::optional<int> slowest = slowest_for(rank);
  if (slowest) {
    states_[static_cast<size_t>(*slowest)].holders.push_back(rank);
    ++counts_.copies;
  }
  return slowest;
}

// Returns the unfinished portion that was handed out first and has no second copy yet.
std::optional<int> PortionScheduler::slowest_for(int rank) const {
  for (const int portion : handed_out_) {
    const State& state = states_[static_cast<size_t>(portion)];
    if (!state.finished && state.holders.size() < kMostCopies && state.holders.front() != rank)
      return portion;
  }
  return std::nullopt;
}

bool PortionScheduler::finish(int rank, int portion) {
  const auto holds = [&](const State& state) {
    return std::find(state.holders.begin(), state.holders.end(), rank) != state.holders.end();
  };
  if (portion < 0 || portion >= portions_ || !holds(states_[static_cast<size_t>(portion)]))
    throw CommError(fmt::format("rank {} finished portion {}, which it was not given", rank, portion), rank);
  State& state = states_[static_cast<size_t>(portion)];
  if (state.finished) return false;
  state.finished = true;
  ++finished_;
  ++counts_.delivered[static_cast<size_t>(rank)];
  if (state.holders.front() != rank) ++counts_.copies_first;
  return true;
}

}  // namespace starling
