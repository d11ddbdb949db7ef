#include "starling/server/server_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/optim/finite.h"

namespace starling {
namespace {

// Returns the unit in which the weights of a clock count. A gradient without weight does not set it.
double unit_of(const PushNotes& notes) {
  return notes.weight > 0 ? notes.weight : 1;
}

}  // namespace

template <typename T>
ServerTable<T>::ServerTable(std::vector<size_t> sizes, const ServerOptions& options)
    : options_(options),
      rule_(make_update_rule(options.optimizer)),
      own_rule_(options.make_rule ? options.make_rule() : nullptr),
      sizes_(std::move(sizes)),
      steps_(sizes_.size(), 0),
      loads_(sizes_.size(), 0),
      changes_(sizes_.size(), 0),
      workers_(options.workers) {
  check_server_options(options);
  size_t total = 0;
  for (const size_t size : sizes_) {
    offset_.push_back(total);
    total += size;
  }
  master_.resize(total);
  states_.assign(own_rule_ ? own_rule_->state_count() : rule_.state_count(), std::vector<T>(total));
  if (options.synchronous() && !options.fixed_order) sum_.resize(total);
  summed_.assign(sizes_.size(), 0);
  stats_.pushes.assign(options.workers, 0);
}

template <typename T>
void ServerTable<T>::join(int worker, std::vector<size_t> partitions) {
  Worker& w = workers_[worker];
  if (w.phase != Phase::kExpected) throw CommError(fmt::format("worker {} joined twice", worker), worker);
  for (size_t i = 0; i < partitions.size(); ++i) {
    if (partitions[i] >= sizes_.size() || (i > 0 && partitions[i] <= partitions[i - 1])) {
      throw CommError(fmt::format("worker {} claims partition {} of {}, not in ascending order", worker,
                                  partitions[i], sizes_.size()),
                      worker);
    }
    w.count += sizes_[partitions[i]];
  }
  w.partitions = std::move(partitions);
  w.seen.assign(w.partitions.size(), 0);
  w.phase = Phase::kActive;
  close_round_if_complete();  // a worker that owns nothing does not hold up the clock
}

template <typename T>
void ServerTable<T>::retire(int worker, bool lost) {
  Worker& w = workers_[worker];
  if (w.phase == Phase::kRetired) return;
  w.phase = Phase::kRetired;
  if (lost) {
    ++stats_.retired;
    stats_.lost.push_back(worker);
    if (options_.redo_after_loss && !w.holds) break_off();
  }
  record(ServerTableAction::kRetire, worker, w.clock, lost ? 1 : 0);
  close_round_if_complete();
}

// Begins the open clock again. All gradients of the clock belong to a batch of which the lost worker had a
// part.
template <typename T>
void ServerTable<T>::break_off() {
  told_of_ = static_cast<int>(stats_.lost.size());
  for (Worker& w : workers_) {
    if (!std::exchange(w.holds, false)) continue;
    --w.clock;
    record(ServerTableAction::kDrop, static_cast<int>(&w - workers_.data()), w.clock);
  }
  std::fill(summed_.begin(), summed_.end(), 0.0);
}

template <typename T>
void ServerTable<T>::load(int worker, int64_t updates, std::span<const T> values) {
  const Worker& w = workers_[worker];
  const bool with_states = values.size() == w.count * (1 + states_.size());
  if (w.phase != Phase::kActive || updates < 0 || (values.size() != w.count && !with_states)) {
    throw CommError(fmt::format("worker {} loads {} values made by {} updates into {}", worker, values.size(),
                                updates, w.count),
                    worker);
  }
  const T* from = values.data();
  for (size_t k = 0; k <= states_.size(); ++k) {
    std::vector<T>& into = k == 0 ? master_ : states_[k - 1];
    for (const size_t partition : w.partitions) {
      if (k > 0 && !with_states) {
        std::fill_n(into.data() + offset_[partition], sizes_[partition], T(0));
      } else {
        std::copy_n(from, sizes_[partition], into.data() + offset_[partition]);
        from += sizes_[partition];
      }
    }
  }
  for (const size_t partition : w.partitions) {
    steps_[partition] = updates;
    ++loads_[partition];
  }
}

template <typename T>
bool ServerTable<T>::counts(const Worker& w) const {
  return w.phase == Phase::kExpected || (w.phase == Phase::kActive && !w.partitions.empty());
}

// Returns whether the worker must wait for the warm start of the first replica.
template <typename T>
bool ServerTable<T>::is_cold(int worker) const {
  if (options_.warm_updates == 0 || worker < options_.warm_workers) return false;
  const Worker& w = workers_[worker];
  const bool meets = (stop_after_ && w.clock < *stop_after_) ||
                     std::any_of(workers_.begin(), workers_.end(),
                                 [&](const Worker& other) { return other.asked > w.asked; });
  const auto first = std::min<size_t>(workers_.size(), static_cast<size_t>(options_.warm_workers));
  const bool alone = std::none_of(workers_.begin(), workers_.begin() + static_cast<ptrdiff_t>(first),
                                  [&](const Worker& warm) { return counts(warm); });
  if (meets || alone) return false;
  return std::any_of(w.partitions.begin(), w.partitions.end(),
                     [&](size_t partition) { return steps_[partition] < options_.warm_updates; });
}

template <typename T>
int64_t ServerTable<T>::slowest_clock() const {
  std::optional<int64_t> least;
  for (const Worker& w : workers_) {
    if (counts(w)) least = least ? std::min(*least, w.clock) : w.clock;
  }
  return least.value_or(0);
}

// Returns a number of pushes that no worker reaches before it has read again. A worker may be in its next
// step already, and may take `staleness` further steps from its cache.
template <typename T>
int64_t ServerTable<T>::stop_clock() const {
  int64_t furthest = 0;
  for (const Worker& w : workers_) {
    if (counts(w)) furthest = std::max(furthest, w.clock);
  }
  return furthest + 3 + options_.staleness.value_or(0);
}

template <typename T>
void ServerTable<T>::check_clock(int worker, int64_t clock, int64_t expected, const char* what) const {
  if (workers_[worker].phase != Phase::kActive)
    throw CommError(fmt::format("{} of worker {}, which has not joined or has left", what, worker), worker);
  if (clock == expected) return;
  throw CommError(
      fmt::format("{} of worker {} at clock {}; it is at clock {}", what, worker, clock, expected), worker);
}

template <typename T>
bool ServerTable<T>::may_push(int worker) const {
  const int64_t served = workers_[worker].served;
  return std::none_of(workers_.begin(), workers_.end(),
                      [&](const Worker& w) { return w.phase != Phase::kRetired && w.served < served; });
}

template <typename T>
PushOutcome ServerTable<T>::push(int worker, int64_t clock, const PushNotes& notes,
                                 std::vector<T>& gradient) {
  check_usable();
  Worker& w = workers_[worker];
  if (options_.synchronous() && clock < clock_) {
    check_clock(worker, clock, clock, "push");
  } else {
    check_clock(worker, clock, options_.synchronous() ? clock_ : w.clock, "push");
  }
  if (!(notes.weight >= 0 && std::isfinite(notes.weight)))
    throw CommError(fmt::format("worker {} pushes a mean of weight {}", worker, notes.weight), worker);
  if (w.holds || gradient.size() != w.count) {
    throw CommError(fmt::format("worker {} pushes {} values at clock {}{}; it owns {} here", worker,
                                gradient.size(), clock, w.holds ? " again" : "", w.count),
                    worker);
  }
  check_finite(worker, clock, notes, gradient);
  ++stats_.pushes[worker];
  w.notes = notes;
  // If all workers are past the clock of an earlier request, they have met.
  const bool answered =
      stop_after_ && (options_.synchronous() ? *stop_after_ < clock_ : *stop_after_ <= slowest_clock());
  if (notes.stop && (!stop_after_ || (options_.stops_again() && answered)))
    stop_after_ = options_.synchronous() ? std::max(clock, clock_) : stop_clock();
  if (options_.synchronous()) return hold(worker, clock, gradient);
  apply_now(worker, gradient);
  ++w.clock;
  return PushOutcome::kApplied;
}

// A push that is not finite would spoil the parameters of all workers. It is refused before it is added to
// anything. A codec may be the cause: fp16 has no numbers above 65,504.
template <typename T>
void ServerTable<T>::check_finite(int worker, int64_t clock, const PushNotes& notes,
                                  const std::vector<T>& gradient) const {
  if (std::isfinite(notes.loss) && all_finite(gradient.data(), gradient.size())) return;
  throw CommError(
      fmt::format(
          "the server refused the push of worker {} at clock {}: {} is not finite. Other workers are not "
          "affected; try a lower --lr, warm-up (--set schedule.warmup_steps=…) or a codec with a larger "
          "range, such as bf16",
          worker, clock, std::isfinite(notes.loss) ? "its gradient" : "its loss"),
      worker);
}

template <typename T>
PushOutcome ServerTable<T>::hold(int worker, int64_t clock, std::vector<T>& gradient) {
  Worker& w = workers_[worker];
  if (must_redo(w)) {
    record(ServerTableAction::kDrop, worker, clock);
    return PushOutcome::kDropped;
  }
  ++w.clock;
  if (clock < clock_) {
    ++stats_.late_dropped;
    record(ServerTableAction::kDrop, worker, clock);
    return PushOutcome::kDropped;
  }
  record(ServerTableAction::kHold, worker, clock);
  w.holds = true;
  if (options_.fixed_order) {
    std::swap(w.gradient, gradient);
    gradient.resize(w.count);
  } else {
    if (std::all_of(summed_.begin(), summed_.end(), [](double s) { return s == 0; }))
      sum_unit_ = unit_of(w.notes);
    const double share = w.notes.weight / sum_unit_;
    const T factor = static_cast<T>(share);
    const T* from = gradient.data();
    for (const size_t partition : w.partitions) {
      T* sum = sum_.data() + offset_[partition];
      for (size_t i = 0; i < sizes_[partition]; ++i)
        sum[i] = summed_[partition] == 0 ? factor * from[i] : sum[i] + factor * from[i];
      summed_[partition] += share;
      from += sizes_[partition];
    }
  }
  close_round_if_complete();
  return PushOutcome::kHeld;
}

template <typename T>
void ServerTable<T>::close_round_if_complete() {
  if (!options_.synchronous()) return;
  // A worker that waits for a snapshot does not push until the remaining workers have requested the snapshot.
  int held = 0, possible = 0, all = 0;
  for (const Worker& w : workers_) {
    if (w.phase == Phase::kActive && w.partitions.empty()) continue;
    ++all;
    if (w.holds) ++held;
    if (w.holds || (counts(w) && w.asked == w.served)) ++possible;
  }
  if (held > 0 && held >= std::min(all - options_.backup, possible)) apply_round();
}

template <typename T>
void ServerTable<T>::apply_round() {
  std::optional<double> lr;
  // Weights are in units of the first gradient's weight. If all gradients have equal weights, each counts
  // exactly once.
  double unit = 1;
  double loss = 0, weight = 0;
  int held = 0;
  std::vector<std::vector<const T*>> sources(sizes_.size());
  for (Worker& w : workers_) {
    if (!w.holds) continue;
    if (!lr) {
      lr = w.notes.lr;
      unit = unit_of(w.notes);
    }
    const double share = w.notes.weight / unit;
    loss += share * w.notes.loss;
    weight += share;
    ++held;
    if (!options_.fixed_order) continue;
    if (share != 1)
      std::for_each(w.gradient.begin(), w.gradient.end(), [&](T& g) { g *= static_cast<T>(share); });
    const T* at = w.gradient.data();
    for (const size_t partition : w.partitions) {
      sources[partition].push_back(at);
      summed_[partition] += share;
      at += sizes_[partition];
    }
  }
  for (size_t partition = 0; partition < sizes_.size(); ++partition) {
    if (summed_[partition] == 0) continue;
    if (!options_.fixed_order) sources[partition] = {sum_.data() + offset_[partition]};
    if (!apply_to(partition, sources[partition], 1.0 / summed_[partition], *lr)) spoil();
    summed_[partition] = 0;
    ++changes_[partition];
  }
  for (Worker& w : workers_) w.holds = false;
  round_loss_ = weight > 0 ? loss / weight : 0;
  told_of_ = static_cast<int>(stats_.lost.size());
  record(ServerTableAction::kUpdate, -1, clock_, held);
  ++clock_;
  ++stats_.updates;
}

// The update was made in place, so it cannot be taken back. The gradients are dropped, so that the loss of a
// worker does not apply them again.
template <typename T>
void ServerTable<T>::spoil() {
  for (Worker& w : workers_) w.holds = false;
  std::fill(summed_.begin(), summed_.end(), 0.0);
  spoiled_ = fmt::format(
      "the sum of the workers' gradients of clock {} is not finite, though each of them is; "
      "try a lower --lr or warm-up (--set schedule.warmup_steps=…)",
      clock_);
  throw CommError(spoiled_);
}

template <typename T>
void ServerTable<T>::check_usable() const {
  if (!spoiled_.empty()) throw CommError(spoiled_);
}

template <typename T>
void ServerTable<T>::apply_now(int worker, const std::vector<T>& gradient) {
  Worker& w = workers_[worker];
  const auto left = static_cast<double>(options_.workers) - static_cast<double>(stats_.lost.size());
  const double lr = w.notes.lr * (options_.lambda.empty() ? 1.0 / left : options_.lambda[worker]);
  const T* from = gradient.data();
  int64_t greatest_tau = 0;
  for (size_t i = 0; i < w.partitions.size(); ++i) {
    const size_t partition = w.partitions[i];
    const int64_t tau = changes_[partition] - w.seen[i];
    greatest_tau = std::max(greatest_tau, tau);
    const double divisor = options_.weight_by_staleness ? 1.0 + static_cast<double>(tau) : 1.0;
    apply_to(partition, std::span<const T* const>(&from, 1), 1.0, lr / divisor);
    ++changes_[partition];
    ++w.seen[i];  // τ does not count the worker's own updates
    from += sizes_[partition];
  }
  record(ServerTableAction::kPush, worker, w.clock, greatest_tau);
  ++stats_.updates;
}

template <typename T>
bool ServerTable<T>::apply_own(size_t partition, std::span<const T* const> gradients, double scale,
                               double lr) {
  std::vector<T> mean(sizes_[partition]);
  for (const T* gradient : gradients) {
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i];
  }
  for (T& g : mean) g *= static_cast<T>(scale);
  if (!all_finite(mean.data(), mean.size())) return false;
  std::vector<void*> states;
  states.reserve(states_.size());
  for (std::vector<T>& s : states_) states.push_back(s.data() + offset_[partition]);
  own_rule_->apply({.partition = partition,
                    .parameter = master_.data() + offset_[partition],
                    .states = states.data(),
                    .gradient = mean.data(),
                    .count = sizes_[partition],
                    .lr = lr,
                    .step = ++steps_[partition]});
  return true;
}

template <typename T>
bool ServerTable<T>::apply_to(size_t partition, std::span<const T* const> gradients, double scale,
                              double lr) {
  if (own_rule_) return apply_own(partition, gradients, scale, lr);
  std::vector<T*> state;
  state.reserve(states_.size());
  for (std::vector<T>& s : states_) state.push_back(s.data() + offset_[partition]);
  UpdateArgs<T, T> args;
  args.gradients = gradients.data();
  args.sources = static_cast<int>(gradients.size());
  args.gradient_scale = scale;
  args.parameter = args.parameter_out = master_.data() + offset_[partition];
  args.state = state.data();
  args.state_out = state.data();
  args.count = sizes_[partition];
  return rule_.apply(args, lr, ++steps_[partition]);
}

template <typename T>
double ServerTable<T>::mean_loss() const {
  if (options_.synchronous()) return round_loss_;
  double sum = 0;
  int of = 0;
  for (size_t k = 0; k < workers_.size(); ++k) {
    if (!counts(workers_[k]) || stats_.pushes[k] == 0) continue;
    sum += workers_[k].notes.loss;
    ++of;
  }
  return of > 0 ? sum / of : 0;
}

template <typename T>
ReadGrant ServerTable<T>::grant_to(int worker, int64_t clock) {
  const int64_t behind = options_.synchronous() ? clock - clock_ : clock - slowest_clock();
  ReadGrant grant;
  grant.clock = options_.synchronous() ? clock_ : workers_[worker].clock;
  grant.staleness = std::max<int64_t>(0, behind);
  grant.loss = mean_loss();
  grant.stop = stop_after_ && (!options_.synchronous() || *stop_after_ < clock_);
  // The workers may continue after they have met. All of them have read the clock after the request before
  // the next clock is closed.
  if (options_.synchronous() && options_.stops_again() && stop_after_)
    grant.stop = *stop_after_ + 1 == clock_;
  if (grant.stop && !options_.synchronous()) grant.stop_at = *stop_after_;
  grant.lost = options_.synchronous() ? told_of_ : static_cast<int>(stats_.lost.size());
  return grant;
}

template <typename T>
std::optional<ReadGrant> ServerTable<T>::try_read(int worker, int64_t clock, int64_t min_loads,
                                                  std::vector<T>& out) {
  check_usable();
  const Worker& w = workers_[worker];
  if (options_.synchronous()) {
    check_clock(worker, clock, std::clamp<int64_t>(clock, 0, clock_ + 1), "read");
    if (clock > clock_ && !must_redo(w)) return std::nullopt;
  } else {
    check_clock(worker, clock, w.clock, "read");
    if (options_.staleness && slowest_clock() < clock - *options_.staleness) return std::nullopt;
    if (is_cold(worker)) return std::nullopt;
  }
  for (const size_t partition : w.partitions) {
    if (loads_[partition] < min_loads) return std::nullopt;
  }
  copy_own(worker, out);
  see(workers_[worker]);
  const ReadGrant grant = grant_to(worker, clock);
  workers_[worker].told = grant.lost;
  ++stats_.reads;
  ++stats_.staleness[std::min(grant.staleness, kLastStalenessBin)];
  stats_.max_staleness = std::max(stats_.max_staleness, grant.staleness);
  record(ServerTableAction::kRead, worker, clock, grant.staleness);
  return grant;
}

// Records that the worker has the present values of its partitions.
template <typename T>
void ServerTable<T>::see(Worker& w) {
  for (size_t i = 0; i < w.partitions.size(); ++i) w.seen[i] = changes_[w.partitions[i]];
}

template <typename T>
void ServerTable<T>::copy_own(int worker, std::vector<T>& out) const {
  const Worker& w = workers_[worker];
  out.resize(w.count);
  T* to = out.data();
  for (const size_t partition : w.partitions)
    to = std::copy_n(master_.data() + offset_[partition], sizes_[partition], to);
}

template <typename T>
void ServerTable<T>::request_snapshot(int worker) {
  Worker& w = workers_[worker];
  if (w.phase != Phase::kActive || w.asked != w.served)
    throw CommError(fmt::format("worker {} asks for a snapshot out of turn", worker), worker);
  ++w.asked;
  close_round_if_complete();
}

template <typename T>
std::optional<ReadGrant> ServerTable<T>::try_snapshot(int worker, Want want, std::vector<T>& out) {
  check_usable();
  Worker& w = workers_[worker];
  STARLING_CHECK(w.asked == w.served + 1, "worker {} has not requested a snapshot", worker);
  for (const Worker& other : workers_) {
    if (other.phase != Phase::kRetired && other.asked < w.asked) return std::nullopt;
  }
  if (want == Want::kWhole) {
    out.clear();
    out.insert(out.end(), master_.begin(), master_.end());
    for (const std::vector<T>& s : states_) out.insert(out.end(), s.begin(), s.end());
  } else if (want == Want::kOwn) {
    copy_own(worker, out);
    see(w);
  } else {
    out.clear();
  }
  w.served = w.asked;
  return grant_to(worker, w.clock);
}

template <typename T>
int64_t ServerTable<T>::updates() const {
  return steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end());
}

template <typename T>
void ServerTable<T>::record(ServerTableAction action, int worker, int64_t clock, int64_t value) {
  if (options_.record_events) events_.push_back({action, worker, clock, value});
}

template class ServerTable<float>;
template class ServerTable<double>;

}  // namespace starling
