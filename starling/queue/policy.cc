#include "starling/queue/policy.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace starling {
namespace {

// One call of decide(). The jobs are pointers into the state.
class Round {
 public:
  Round(const PolicyState& state, const QueuePolicyOptions& options, double now_s)
      : state_(state), options_(options), now_(now_s) {
    for (const HostSlots& host : state.hosts) free_.push_back(host.slots);
    for (const auto& [name, user] : state.users) usage_[name] = user.usage;
    for (const PolicyJob& job : state.jobs) take(job);
  }

  PolicyDecision run() {
    while (!queued_.empty()) {
      const auto next =
          std::min_element(queued_.begin(), queued_.end(),
                           [this](const auto* a, const auto* b) { return order(*a) < order(*b); });
      const PolicyJob& job = **next;
      queued_.erase(next);
      if (job.slots <= free_slots() && may_start(job)) {
        start(job);
      } else if (!reserved_) {
        reserve(job);
        preempt_for(job);
      }
    }
    return std::move(decision_);
  }

 private:
  struct End {
    double at = 0;
    int slots = 0;
  };

  void take(const PolicyJob& job) {
    if (job.phase == PolicyPhase::kQueued) {
      queued_.push_back(&job);
      return;
    }
    for (const HostPart& part : job.parts) free_[static_cast<size_t>(part.host)] -= part.slots;
    if (job.phase == PolicyPhase::kStopping) {
      ends_.push_back({now_ + options_.save_s, job.slots});
      coming_ += job.slots;
      return;
    }
    const double rest = job.remaining_s > 0 ? job.remaining_s : options_.overrun_s;
    ends_.push_back({now_ + rest, job.slots});
    running_.push_back(&job);
    usage_[job.user] += ahead(job);
  }

  // The slot-seconds that a job will use soon. They count at once, so that the queued jobs of one user do not
  // start all together.
  double ahead(const PolicyJob& job) const {
    return job.slots * std::clamp(job.remaining_s, 0.0, options_.min_run_s);
  }
  double per_share(const std::string& user) const { return usage_.at(user) / state_.users.at(user).share; }
  bool overdue(const PolicyJob& job) const { return now_ - job.queued_s >= options_.age_limit_s; }

  std::tuple<bool, double, int, double, double, int64_t> order(const PolicyJob& job) const {
    const bool old = overdue(job);
    return {!old, old ? job.queued_s : 0, -job.priority, old ? 0 : per_share(job.user), job.queued_s, job.id};
  }

  int free_slots() const { return std::accumulate(free_.begin(), free_.end(), 0); }

  bool may_start(const PolicyJob& job) const {
    return !reserved_ || now_ + job.remaining_s <= shadow_ || job.slots <= extra_;
  }

  void start(const PolicyJob& job) {
    std::vector<HostPart> parts = place(free_, job.slots);
    for (const HostPart& part : parts) free_[static_cast<size_t>(part.host)] -= part.slots;
    if (reserved_ && now_ + job.remaining_s > shadow_) extra_ -= job.slots;
    ends_.push_back({now_ + job.remaining_s, job.slots});
    usage_[job.user] += ahead(job);
    decision_.starts.push_back({job.id, std::move(parts)});
  }

  // Finds the time at which enough slots are free for `job`, and how many are left over then.
  void reserve(const PolicyJob& job) {
    reserved_ = true;
    std::sort(ends_.begin(), ends_.end(), [](const End& a, const End& b) { return a.at < b.at; });
    int free = free_slots();
    shadow_ = now_;
    for (const End& end : ends_) {
      if (free >= job.slots) break;
      free += end.slots;
      shadow_ = end.at;
    }
    extra_ = free - job.slots;
  }

  bool precedes(const PolicyJob& job, const PolicyJob& victim) const {
    if (now_ - victim.started_s < options_.min_run_s) return false;
    if (overdue(job) && job.queued_s < victim.queued_s) return true;
    if (job.priority != victim.priority) return job.priority > victim.priority;
    if (job.user == victim.user) return false;
    const double quantum = options_.min_run_s;
    const double after = usage_.at(job.user) + job.slots * quantum;
    const double before = usage_.at(victim.user) - victim.slots * quantum;
    return after / state_.users.at(job.user).share < before / state_.users.at(victim.user).share;
  }

  // Chooses jobs that make room: those of small priority first, then those of users far above their share,
  // then those that began last.
  void preempt_for(const PolicyJob& job) {
    if (!options_.preempts || shadow_ <= now_ + options_.patience_s) return;
    std::vector<const PolicyJob*> victims;
    for (const PolicyJob* victim : running_)
      if (precedes(job, *victim)) victims.push_back(victim);
    std::sort(victims.begin(), victims.end(), [this](const auto* a, const auto* b) {
      return std::tuple(a->priority, -per_share(a->user), -a->started_s, a->id) <
             std::tuple(b->priority, -per_share(b->user), -b->started_s, b->id);
    });
    int room = free_slots() + coming_;
    size_t count = 0;
    while (count < victims.size() && room < job.slots) room += victims[count++]->slots;
    if (room < job.slots) return;
    victims.resize(count);
    // A victim that is not needed any more keeps running, the last chosen first.
    for (size_t i = count; i-- > 0;) {
      if (room - victims[i]->slots < job.slots) continue;
      room -= victims[i]->slots;
      victims.erase(victims.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const PolicyJob* victim : victims) decision_.preempted.push_back(victim->id);
    shadow_ = now_ + options_.save_s;
    extra_ = room - job.slots;
  }

  const PolicyState& state_;
  const QueuePolicyOptions& options_;
  const double now_;
  std::vector<int> free_;                // by host
  std::map<std::string, double> usage_;  // with the slot-seconds of ahead()
  std::vector<const PolicyJob*> queued_, running_;
  std::vector<End> ends_;  // expected
  int coming_ = 0;         // slots of jobs that stop
  bool reserved_ = false;  // a job has a reservation …
  double shadow_ = 0;      // … at this time …
  int extra_ = 0;          // … which leaves so many slots to other jobs
  PolicyDecision decision_;
};

}  // namespace

PolicyDecision decide(const PolicyState& state, const QueuePolicyOptions& options, double now_s) {
  return Round(state, options, now_s).run();
}

int slots_of(const std::vector<HostSlots>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& host) { return sum + host.slots; });
}

std::vector<HostPart> place(const std::vector<int>& free, int slots) {
  if (std::accumulate(free.begin(), free.end(), 0) < slots) return {};
  int best = -1;
  for (int host = 0; host < static_cast<int>(free.size()); ++host) {
    const int here = free[static_cast<size_t>(host)];
    if (here >= slots && (best < 0 || here < free[static_cast<size_t>(best)])) best = host;
  }
  if (best >= 0) return {{best, slots}};
  std::vector<int> hosts(free.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  std::stable_sort(hosts.begin(), hosts.end(),
                   [&](int a, int b) { return free[static_cast<size_t>(a)] > free[static_cast<size_t>(b)]; });
  std::vector<HostPart> parts;
  for (const int host : hosts) {
    const int taken = std::min(slots, free[static_cast<size_t>(host)]);
    if (taken > 0) parts.push_back({host, taken});
    slots -= taken;
  }
  std::sort(parts.begin(), parts.end(), [](const HostPart& a, const HostPart& b) { return a.host < b.host; });
  return parts;
}

}  // namespace starling
