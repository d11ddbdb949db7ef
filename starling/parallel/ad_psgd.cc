#include "starling/parallel/ad_psgd.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/exchange_parts.h"

namespace starling {
namespace {

// Time between two looks for messages. A blocking receive would end with a TimeoutError if a neighbor
// computes for long.
constexpr std::chrono::microseconds kPairLook{100};
// The longest such time of an answering thread, which doubles the time until a message arrives.
constexpr std::chrono::microseconds kLongestLook{1000};

// The step number of an active rank that has finished.
constexpr int64_t kNoFurtherStep = 0;

// Sets own ← (own + other) / 2 and other ← the earlier own. Both ranks of a pair get equal bits, because the
// sum does not depend on the order of its two terms. The loop runs in the calling thread: ATen would start
// further threads for each thread that calls it.
template <typename T>
void average_and_swap(T* own, T* other, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const T before = own[i];
    own[i] = (before + other[i]) / 2;
    other[i] = before;
  }
}

void average_pair(at::Tensor& own, at::Tensor& other) {
  if (own.scalar_type() == at::kDouble)
    return average_and_swap(own.data_ptr<double>(), other.data_ptr<double>(), own.numel());
  average_and_swap(own.data_ptr<float>(), other.data_ptr<float>(), own.numel());
}

}  // namespace

std::vector<bool> active_ranks_of(GossipGraph graph, int size) {
  std::vector<int> side(static_cast<size_t>(size), -1), found = {0};
  side[0] = 0;
  for (size_t at = 0; at < found.size(); ++at) {
    const int own = side[static_cast<size_t>(found[at])];
    for (const int peer : neighbors_of(graph, found[at], size).hears) {
      int& other = side[static_cast<size_t>(peer)];
      if (other == own)
        throw ConfigError("exchange.graph",
                          fmt::format("ad-psgd needs a graph whose ranks can be divided into active and "
                                      "passive ones, so that neighbors are never of one kind, and ranks {} "
                                      "and {} of {} cannot: use --graph ring and an even number of ranks",
                                      found[at], peer, size));
      if (other != -1) continue;
      other = 1 - own;
      found.push_back(peer);
    }
  }
  std::vector<bool> active;
  for (const int s : side) active.push_back(s == 0);
  return active;
}

int chosen_neighbor(const std::vector<int>& neighbors, uint64_t seed, int rank, int64_t step) {
  const uint64_t bits = key_of(seed, static_cast<uint64_t>(rank), static_cast<uint64_t>(step));
  return neighbors[bits % neighbors.size()];
}

AdPsgd::AdPsgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
               GossipGraph graph, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      active_(active_ranks_of(graph, group.size())[static_cast<size_t>(group.rank())]),
      neighbors_(neighbors_of(graph, group.rank(), group.size()).hears),
      active_ranks_([&] {
        const std::vector<bool> active = active_ranks_of(graph, group.size());
        return static_cast<int>(std::count(active.begin(), active.end(), true));
      }()),
      meetings_(group.rank(), group.size()),
      heard_(at::empty_like(replica_.parameters())) {
  if (active_) return;
  x_ = at::empty_like(replica_.parameters());
  answering_ = std::thread([this] { answer_all(); });
}

AdPsgd::~AdPsgd() {
  // Ranks that wait for messages of this one without a limit would not notice that it has left.
  if (std::uncaught_exceptions() > 0)
    group_.abort(fmt::format("rank {} has ended its training with an error", group_.rank()));
  if (answering_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      stopping_ = std::uncaught_exceptions() > 0;
      changed_.notify_all();
    }
    answering_.join();
  }
  if (!active_) return;
  // The threads of the group use the memory of this object until the messages are done.
  for (const WorkPtr& work : {sends_head_, sends_, receives_}) {
    try {
      if (work != nullptr) work->wait();
    } catch (const Error&) {
      // The caller gets this error from its next call into the group.
    }
  }
  for (const int peer : neighbors_) {
    try {
      send(group_, &kNoFurtherStep, sizeof(kNoFurtherStep), peer, kExchangeTag);
    } catch (const Error&) {
      // The neighbor has ended and needs no message.
    }
  }
}

void AdPsgd::begin_step(const Step& step) {
  ReplicaStrategy::begin_step(step);
  if (active_) return request();
  rethrow_failure();
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  own_step_ = step.index;
  if (open_) {
    replica_.parameters().copy_(x_);
    replica_.parameters_changed();
    return;
  }
  x_.copy_(replica_.parameters());
  open_ = true;
  changed_.notify_all();
}

// Nothing writes the parameters before update(), so the message needs no copy of them.
void AdPsgd::request() {
  if (neighbors_.empty()) return;
  const int peer = chosen_neighbor(neighbors_, replica_.options().seed, group_.rank(), step_.index);
  head_ = step_.index;
  at::Tensor& x = replica_.parameters();
  receives_ = group_.recv(heard_.data_ptr(), heard_.nbytes(), peer, kExchangeTag);
  sends_head_ = group_.send(&head_, sizeof(head_), peer, kExchangeTag);
  sends_ = group_.send(x.data_ptr(), x.nbytes(), peer, kExchangeTag);
}

void AdPsgd::finish_request() {
  if (receives_ == nullptr) return;
  // The works stay until all of them are done, so that the destructor waits for them after an error.
  sends_head_->wait();
  sends_->wait();
  receives_->wait();
  sends_head_ = sends_ = receives_ = nullptr;
  average_pair(replica_.parameters(), heard_);
  replica_.parameters_changed();
}

void AdPsgd::update_passive() {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  replica_.parameters().copy_(x_);
  replica_.update(step_);
  x_.copy_(replica_.parameters());
}

bool AdPsgd::advance(StepReport& report) {
  if (active_) {
    exchanging(report, ExchangePhase::kParameters, [&] { finish_request(); });
    replica_.update(step_);
  } else {
    rethrow_failure();
    update_passive();
  }
  exchanging(report, ExchangePhase::kAgreement, [&] { report.stop = stops_now(); });
  return false;  // the ranks agree by meetings, and not in a collective
}

// Returns true, on all ranks after the same step, if some rank has asked to stop. The ranks have met then.
bool AdPsgd::stops_now() {
  meetings_.finish_step(step_.index, step_.stop_requested);
  await_messages();
  if (!meetings_.stops_after(step_.index)) return false;
  meet();
  return true;
}

// Waits until all ranks have finished this step. The parameters are then x of this rank after the step, also
// if a neighbor begins its next step.
void AdPsgd::meet() {
  if (met_at_ == step_.index) return;
  finish_request();
  meetings_.arrive(step_.index);
  await_messages();
  met_at_ = step_.index;
  if (active_) return;
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  // The neighbors have received all answers, but the answering thread may not have counted the bytes yet.
  changed_.wait(lock, [this] { return !answers_now_; });
  if (!open_) return;
  replica_.parameters().copy_(x_);
  replica_.parameters_changed();
}

// Exchanges messages about meetings until this rank may go on. The wait has no limit of time, because a slow
// rank is no fault. It ends with a CommError if a rank is lost.
void AdPsgd::await_messages() {
  for (;;) {
    for (const Meetings::Outgoing& out : meetings_.take_outgoing())
      send(group_, &out.message, sizeof(out.message), out.to, kMeetingTag);
    rethrow_failure();
    if (take_messages()) continue;
    if (meetings_.may_go_on()) return;
    std::this_thread::sleep_for(kPairLook);
  }
}

// Takes in the messages that have arrived. Returns false if there are none.
bool AdPsgd::take_messages() {
  bool found = false;
  const int end = group_.rank() == 0 ? group_.size() : 1;  // other ranks hear from rank 0 only
  for (int peer = 0; peer < end; ++peer) {
    if (peer == group_.rank()) continue;
    MeetingMessage message;
    while (group_.try_recv(&message, sizeof(message), peer, kMeetingTag)) {
      meetings_.receive(peer, message);
      found = true;
    }
  }
  return found;
}

void AdPsgd::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

at::Tensor AdPsgd::agreed() {
  meet();
  return mean_over_ranks(replica_.parameters());
}

void AdPsgd::answer_all() {
  std::vector<int> left = neighbors_;
  std::chrono::microseconds pause = kPairLook;
  try {
    while (!left.empty()) {
      bool found = false;
      for (size_t i = 0; i < left.size(); ++i) {
        int64_t step = 0;
        if (!group_.try_recv(&step, sizeof(step), left[i], kExchangeTag)) continue;
        found = true;
        if (step != kNoFurtherStep) {
          answer(left[i], step);
          continue;
        }
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
        --i;
      }
      std::unique_lock lock(mutex_);
      if (stopping_) return;
      if (!found) changed_.wait_for(lock, pause);
      pause = found ? kPairLook : std::min(2 * pause, kLongestLook);
    }
  } catch (...) {  // the computing thread throws it
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    answers_now_ = false;
    changed_.notify_all();
  }
}

void AdPsgd::answer(int peer, int64_t step) {
  recv(group_, heard_.data_ptr(), heard_.nbytes(), peer, kExchangeTag);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ || closing_; });
    if (!open_ || stopping_) return;
    average_pair(x_, heard_);
    ++exchanges_;
    largest_lead_ = std::max<int64_t>(largest_lead_, std::abs(step - own_step_));
    answers_now_ = true;
  }
  send(group_, heard_.data_ptr(), heard_.nbytes(), peer, kExchangeTag);
  const std::lock_guard lock(mutex_);
  answers_now_ = false;
  changed_.notify_all();
}

StrategyStats AdPsgd::strategy_stats() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor mean = agreed();
  double sums[2] = {replica_.squares(replica_.parameters() - mean), 0}, lead = 0;
  {
    const std::lock_guard lock(mutex_);
    sums[1] = static_cast<double>(exchanges_);
    lead = static_cast<double>(largest_lead_);
  }
  if (group_.size() > 1) {
    all_reduce(group_, sums, 2, DataType::kFp64, ReduceOp::kSum);
    all_reduce(group_, &lead, 1, DataType::kFp64, ReduceOp::kMax);
  }
  return {{"exchanges", sums[1]},
          {"active_ranks", active_ranks_},
          {"largest_lead", lead},
          {"disagreement", std::sqrt(sums[0])}};
}

std::unique_ptr<Strategy> make_ad_psgd(const ExchangeParts& parts) {
  return std::make_unique<AdPsgd>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                  gossip_graph(parts.spec.exchange.graph), parts.group, parts.clock);
}

}  // namespace starling
