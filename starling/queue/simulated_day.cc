#include "starling/queue/simulated_day.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "starling/base/error.h"
#include "starling/base/keyed_normal.h"
#include "starling/base/keyed_random.h"
#include "starling/queue/fair_service.h"
#include "starling/queue/usage.h"

namespace starling {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTick = 60;  // the policy is asked so often while a job waits

// Draws numbers in a fixed order.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  double uniform() { return uniform_of(key_of(seed_, 0x71756575, next_++)); }
  double normal() {
    const double logarithm = std::log(1 - uniform());
    return normal_of(logarithm, uniform());
  }

 private:
  uint64_t seed_, next_ = 0;
};

// Small jobs are frequent, powers of two more than other sizes.
int draw_slots(Draws& draws, int largest) {
  const double exponent = draws.uniform() * std::log2(largest + 1.0);
  const int any = std::clamp(static_cast<int>(std::exp2(exponent)), 1, largest);
  if (draws.uniform() < 0.25) return any;
  return 1 << static_cast<int>(std::log2(any));
}

// What the simulation knows of a job.
struct Live {
  const DayJob* job = nullptr;
  PolicyPhase phase = PolicyPhase::kQueued;
  double queued_s = 0, started_s = 0;
  double left_s = 0;        // computation
  double computes_s = 0;    // when the present run begins to compute
  double expected_s = 0;    // what is left of the user's expectation
  double event_s = kNever;  // its end, or the end of its checkpoint
  bool arrived = false, ended = false;
  std::vector<HostPart> parts;
};

class Simulation {
 public:
  Simulation(const DayOptions& options, const Day& day, const QueuePolicyOptions& policy)
      : options_(options), day_(day), policy_(policy) {
    for (const DayJob& job : day.jobs) {
      if (job.slots > slots_of(options.hosts))
        throw ConfigError("", "a job of the day is larger than the cluster");
      Live live;
      live.job = &job;
      live.left_s = job.run_s;
      live.expected_s = job.expected_s;
      lives_.push_back(live);
    }
    result_.jobs.resize(lives_.size());
    for (const auto& [name, share] : day.shares) usage_[name] = {};
  }

  DayResult run(const std::function<void(const PolicyState&, const PolicyDecision&, double)>& watch) {
    while (ended_ < lives_.size()) {
      const double next = next_event();
      accrue(next);
      now_ = next;
      happen();
      const PolicyState state = seen();
      const PolicyDecision decision = decide(state, policy_, now_);
      if (watch) watch(state, decision, now_);
      for (const PolicyStart& start : decision.starts)
        begin(lives_[static_cast<size_t>(start.id)], start.parts);
      for (const int64_t id : decision.preempted) stop(lives_[static_cast<size_t>(id)]);
    }
    finish();
    return std::move(result_);
  }

 private:
  bool holds(const Live& live) const { return live.phase != PolicyPhase::kQueued && !live.ended; }
  bool waits(const Live& live) const {
    return live.arrived && !live.ended && live.phase == PolicyPhase::kQueued;
  }

  double next_event() const {
    double next = kNever;
    bool backlog = false;
    for (const Live& live : lives_) {
      if (!live.arrived) next = std::min(next, live.job->submitted_s);
      if (holds(live)) next = std::min(next, live.event_s);
      backlog = backlog || waits(live);
    }
    return backlog ? std::min(next, now_ + kTick) : next;
  }

  // Counts the time from now_ to `next`, in which nothing changes but the beginning of computation.
  void accrue(double next) {
    const double end = std::min(next, options_.length_s);
    const bool backlog =
        std::any_of(lives_.begin(), lives_.end(), [this](const Live& l) { return waits(l); });
    if (backlog && end > now_) result_.backlog_s += end - now_;
    for (const Live& live : lives_) {
      if (!holds(live)) continue;
      const double slots = live.job->slots;
      const bool computes = live.phase == PolicyPhase::kRunning;
      const double begin = computes ? std::max(now_, live.computes_s) : next;
      computed_ += slots * std::max(0.0, next - begin);
      overhead_ += slots * (std::min(next, begin) - now_);
      const double within = slots * std::max(0.0, end - begin);
      result_.service[live.job->user] += within;
      if (!backlog) continue;
      busy_ += within;
      occupied_ += slots * std::max(0.0, end - now_);
    }
  }

  void happen() {
    for (size_t i = 0; i < lives_.size(); ++i) {
      Live& live = lives_[i];
      if (!live.arrived && live.job->submitted_s <= now_) {
        live.arrived = true;
        live.queued_s = live.job->submitted_s;
      }
      if (!holds(live) || live.event_s > now_) continue;
      charge(live);
      if (live.phase == PolicyPhase::kRunning) {
        live.ended = true;
        ++ended_;
        result_.jobs[i].ended_s = now_;
      } else {
        live.phase = PolicyPhase::kQueued;
        live.queued_s = now_;
      }
      live.parts.clear();
      live.event_s = kNever;
    }
  }

  void charge(const Live& live) {
    usage_[live.job->user].add(live.job->slots, live.started_s, now_, policy_.half_life_s);
  }

  PolicyState seen() {
    PolicyState state;
    state.hosts = options_.hosts;
    for (auto& [name, usage] : usage_) {
      usage.decay_to(now_, policy_.half_life_s);
      state.users[name] = {day_.shares.at(name), usage.amount};
    }
    for (size_t i = 0; i < lives_.size(); ++i) {
      const Live& live = lives_[i];
      if (!live.arrived || live.ended) continue;
      PolicyJob job{.id = static_cast<int64_t>(i),
                    .user = live.job->user,
                    .slots = live.job->slots,
                    .priority = live.job->priority,
                    .queued_s = live.queued_s};
      job.remaining_s = live.expected_s;
      job.phase = live.phase;
      job.parts = live.parts;
      if (holds(live)) {
        job.started_s = live.started_s;
        job.remaining_s -= now_ - live.started_s;
        state.users[job.user].usage += usage_of(job.slots, live.started_s, now_, policy_.half_life_s);
      }
      state.jobs.push_back(std::move(job));
    }
    return state;
  }

  void begin(Live& live, const std::vector<HostPart>& parts) {
    DayJobEnd& shown = result_.jobs[static_cast<size_t>(&live - lives_.data())];
    shown.longest_wait_s = std::max(shown.longest_wait_s, now_ - live.queued_s);
    const bool resumes = shown.started_s >= 0;
    if (!resumes) shown.started_s = now_;
    live.phase = PolicyPhase::kRunning;
    live.parts = parts;
    live.started_s = now_;
    live.computes_s = now_ + (resumes ? options_.restore_s : 0);
    live.event_s = live.computes_s + live.left_s;
  }

  void stop(Live& live) {
    const double computed = std::max(0.0, now_ - live.computes_s);
    live.left_s -= computed;
    live.expected_s -= computed;
    live.phase = PolicyPhase::kStopping;
    live.event_s = now_ + options_.save_s;
    ++result_.preemptions;
    ++result_.jobs[static_cast<size_t>(&live - lives_.data())].preemptions;
  }

  void finish() {
    const double slots = slots_of(options_.hosts);
    result_.end_s = now_;
    result_.busy = result_.backlog_s > 0 ? busy_ / (slots * result_.backlog_s) : 1;
    result_.occupied = result_.backlog_s > 0 ? occupied_ / (slots * result_.backlog_s) : 1;
    result_.checkpoint_share = computed_ > 0 ? overhead_ / computed_ : 0;
    std::vector<double> waits;
    for (size_t i = 0; i < lives_.size(); ++i) {
      waits.push_back(result_.jobs[i].started_s - day_.jobs[i].submitted_s);
      result_.mean_wait_s += waits.back() / static_cast<double>(lives_.size());
      result_.longest_wait_s = std::max(result_.longest_wait_s, result_.jobs[i].longest_wait_s);
    }
    std::sort(waits.begin(), waits.end());
    if (!waits.empty()) result_.p95_wait_s = waits[(waits.size() - 1) * 95 / 100];
    std::vector<FluidJob> fluid;
    for (const DayJob& job : day_.jobs)
      fluid.push_back({job.user, job.submitted_s, static_cast<double>(job.slots), job.run_s});
    result_.fair = fluid_service(fluid, day_.shares, slots, options_.length_s, kTick);
    std::vector<double> ratios;
    for (const auto& [user, fair] : result_.fair)
      if (fair > 0) ratios.push_back(result_.service[user] / fair);
    result_.jain = jain_index(ratios);
  }

  const DayOptions& options_;
  const Day& day_;
  const QueuePolicyOptions& policy_;
  double now_ = 0;
  size_t ended_ = 0;
  double busy_ = 0, occupied_ = 0, computed_ = 0, overhead_ = 0;  // slot-seconds
  std::vector<Live> lives_;
  std::map<std::string, DecayedUsage> usage_;
  DayResult result_;
};

}  // namespace

Day generate_day(const DayOptions& options) {
  Day day;
  Draws draws(options.seed);
  // Two users have the double share. What a user asks for is between half and twice the share.
  std::vector<std::string> names = {"ada", "bert", "cleo", "dora", "emil", "fay"};
  std::vector<double> asks;
  for (size_t u = 0; u < names.size(); ++u) {
    day.shares[names[u]] = u < 2 ? 2 : 1;
    asks.push_back((u < 2 ? 2 : 1) * std::exp2(2 * draws.uniform() - 1));
  }
  double total = 0;
  for (const double ask : asks) total += ask;
  const double wanted = options.load * slots_of(options.hosts) * options.length_s;
  for (size_t u = 0; u < names.size(); ++u) {
    // A user submits several jobs at a time. The last job is cut, so that the work is what the user asks for.
    double left = wanted * asks[u] / total, submitted = 0;
    int in_burst = 0;
    while (left > 0) {
      if (in_burst == 0) {
        submitted = options.length_s * draws.uniform();
        in_burst = 1 + static_cast<int>(5 * draws.uniform());
      }
      --in_burst;
      DayJob job;
      job.user = names[u];
      job.slots = draw_slots(draws, options.largest);
      job.priority = draws.uniform() < 0.1 ? 1 : 0;
      job.submitted_s = submitted;
      job.run_s =
          std::clamp(options.median_s * std::exp(draws.normal()), options.shortest_s, options.longest_s);
      job.run_s = std::max(1.0, std::min(job.run_s, left / job.slots));
      job.expected_s = job.run_s * (1 + 2 * draws.uniform());
      left -= job.slots * job.run_s;
      day.jobs.push_back(job);
    }
  }
  std::stable_sort(day.jobs.begin(), day.jobs.end(),
                   [](const DayJob& a, const DayJob& b) { return a.submitted_s < b.submitted_s; });
  for (size_t i = 0; i < day.jobs.size(); ++i) day.jobs[i].id = static_cast<int64_t>(i);
  return day;
}

DayResult simulate_day(
    const DayOptions& options, const Day& day, const QueuePolicyOptions& policy,
    const std::function<void(const PolicyState&, const PolicyDecision&, double now_s)>& watch) {
  return Simulation(options, day, policy).run(watch);
}

}  // namespace starling
