#include "starling/report/time_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace starling {
namespace {

struct UseNames {
  const char* name;
  const char* key;
};
constexpr UseNames kUses[kTimeUses] = {{"computation", "computation_s"}, {"waiting", "waiting_s"},
                                       {"exchange", "exchange_s"},       {"data", "data_s"},
                                       {"evaluation", "evaluation_s"},   {"checkpoints", "checkpoints_s"},
                                       {"recovery", "recovery_s"},       {"start-up", "startup_s"},
                                       {"ending", "ending_s"},           {"other", "other_s"}};

// Returns traits without a name for the exchange of a program, which is not known here.
ExchangeTraits traits_of(const std::optional<RunSpec>& spec) {
  if (!spec) return {};
  const auto exchanges = exchange_table();
  const auto found = std::find_if(exchanges.begin(), exchanges.end(),
                                  [&](const ExchangeTraits& t) { return t.name == spec->exchange.name; });
  return found == exchanges.end() ? ExchangeTraits{} : *found;
}

// Workers of servers wait for each other unless the staleness has no bound.
bool ranks_wait(const TimeAccount& account) {
  if (!account.exchange.servers) return true;
  return account.exchange.lockstep == Lockstep::kByStaleness && account.spec->exchange.staleness != "inf";
}

// The times of one rank against the means over all other ranks.
struct Others {
  double compute_s = 0, exposed_comm_s = 0, data_wait_s = 0;
};
Others mean_without(const std::vector<RankTimes>& ranks, int64_t rank) {
  Others mean;
  for (const RankTimes& own : ranks) {
    if (own.rank == rank) continue;
    mean.compute_s += own.compute_s / static_cast<double>(ranks.size() - 1);
    mean.exposed_comm_s += own.exposed_comm_s / static_cast<double>(ranks.size() - 1);
    mean.data_wait_s += own.data_wait_s / static_cast<double>(ranks.size() - 1);
  }
  return mean;
}

// The rank for which the other ranks of one start waited. Times are in seconds.
struct LateInStart {
  int64_t rank = 0;
  std::string host;
  double others_waited_s = 0;  // as a mean over the other ranks
  double leader_waited_s = 0;
  double computes_s = 0, reads_s = 0;    // how much longer it computes and waits for data
  double busy_s = 0, others_busy_s = 0;  // computation and data
};

std::string host_of(const StartTimes& start, int64_t rank) {
  const std::vector<std::string>& hosts = start.started.hosts;
  return rank >= 0 && rank < std::ssize(hosts) ? hosts[static_cast<size_t>(rank)] : "";
}

// The rank that arrives last waits for nobody, so its exposed communication is the exchange alone. What other
// ranks have above it is their wait for that rank. The wait must also show as longer computation or data.
std::optional<LateInStart> late_in(const StartTimes& start) {
  const std::vector<RankTimes>& ranks = start.rank_times;
  if (ranks.size() < 2) return std::nullopt;
  const RankTimes& last = *std::min_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.exposed_comm_s < b.exposed_comm_s;
  });
  const Others mean = mean_without(ranks, last.rank);
  LateInStart late;
  late.rank = last.rank;
  late.host = host_of(start, last.rank);
  late.computes_s = last.compute_s - mean.compute_s;
  late.reads_s = last.data_wait_s - mean.data_wait_s;
  late.busy_s = last.compute_s + last.data_wait_s;
  late.others_busy_s = mean.compute_s + mean.data_wait_s;
  late.others_waited_s = std::min(mean.exposed_comm_s - last.exposed_comm_s, late.computes_s + late.reads_s);
  if (late.others_waited_s <= 0) return std::nullopt;
  // The ranks are in ascending order, and the first one leads. It does not wait for itself.
  late.leader_waited_s = std::clamp(ranks.front().exposed_comm_s - last.exposed_comm_s, 0.0,
                                    std::max(0.0, start.exposed_comm_s));
  return late;
}

// Returns the host of a rank that was late in `starts`, newest first, or "" if these starts disagree.
std::string common_host(const std::vector<LateInStart>& starts) {
  std::string host;
  for (const LateInStart& start : starts) {
    if (start.host.empty() || start.host == host) continue;
    if (!host.empty()) return "";
    host = start.host;
  }
  return host;
}

// Adds up the starts in which one rank was late. `starts`: the newest first, at least one.
LateRank sum_of_late(const std::vector<LateInStart>& starts, double wall_s) {
  LateInStart sum;
  for (const LateInStart& start : starts) {
    sum.others_waited_s += start.others_waited_s;
    sum.computes_s += start.computes_s;
    sum.reads_s += start.reads_s;
    sum.busy_s += start.busy_s;
    sum.others_busy_s += start.others_busy_s;
  }
  constexpr double kLargest = 1e4;  // others that do nothing have no time to compare with
  LateRank late;
  late.rank = starts.front().rank;
  late.host = common_host(starts);
  late.share = std::min(1.0, sum.others_waited_s / wall_s);
  late.by_data = sum.reads_s > sum.computes_s;
  if (sum.busy_s < kLargest * sum.others_busy_s) late.slowness = sum.busy_s / sum.others_busy_s;
  return late;
}

double median_compute(std::vector<RankTimes> ranks) {
  const auto middle = ranks.begin() + static_cast<ptrdiff_t>((ranks.size() - 1) / 2);
  std::nth_element(ranks.begin(), middle, ranks.end(),
                   [](const auto& a, const auto& b) { return a.compute_s < b.compute_s; });
  return middle->compute_s;
}

void add(TimeAccount& account, TimeUse use, double seconds) {
  account.seconds[static_cast<int>(use)] += seconds;
}

void add_start(TimeAccount& account, const StartTimes& start) {
  account.steps += start.steps;
  account.wall_s += start.wall_s;
  add(account, TimeUse::kComputation, start.compute_s);
  add(account, TimeUse::kExchange, start.exposed_comm_s);
  add(account, TimeUse::kData, start.data_wait_s);
  add(account, TimeUse::kEvaluation, start.evaluation_s);
  add(account, TimeUse::kCheckpoints, start.checkpoint_s);
  add(account, TimeUse::kStartup, start.started.startup_s);
  add(account, TimeUse::kEnding, start.ending_s);
  // The steps around a loss may contain a part of the recovery.
  const double known = start.compute_s + start.exposed_comm_s + start.data_wait_s + start.evaluation_s +
                       start.checkpoint_s + start.started.startup_s + start.ending_s;
  add(account, TimeUse::kRecovery, std::clamp(start.wall_s - known, 0.0, start.recovery_s));
  account.longest_start_s = std::max(account.longest_start_s, start.wall_s);
  for (const auto& [phase, seconds] : start.exchange_s) account.phases[phase] += seconds;
  if (start.exchange_s.empty() && start.exposed_comm_s > 0) account.phases_known = false;
  if (start.ended) {
    account.statistics = start.statistics;
    account.statistics_steps = start.steps;
    account.statistics_ranks = start.started.ranks;
  }
  if (start.test_samples > 0) account.test_samples = start.test_samples;
}

// Names the rank that the other ranks waited for longest. Moves what the leading rank waited for it from the
// exchange to the waiting. The ranks of each start are compared with each other, because a rank that was lost
// has less of everything.
void divide_exchange(TimeAccount& account, const RunTimes& times) {
  double listed_s = 0;  // of the starts that list their ranks
  std::map<int64_t, std::vector<LateInStart>> late_ranks;
  std::map<int64_t, double> waited_s;
  for (auto start = times.starts.rbegin(); start != times.starts.rend(); ++start) {
    if (!start->rank_times.empty()) listed_s += start->wall_s;
    const std::optional<LateInStart> late = late_in(*start);
    if (!late) continue;
    late_ranks[late->rank].push_back(*late);
    waited_s[late->rank] += late->others_waited_s;
  }
  if (late_ranks.empty() || listed_s <= 0) return;
  const auto longest = std::max_element(waited_s.begin(), waited_s.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::vector<LateInStart>& starts = late_ranks[longest->first];
  account.late = sum_of_late(starts, listed_s);
  double waited = 0;
  for (const LateInStart& start : starts) waited += start.leader_waited_s;
  waited = std::min(waited, account.of(TimeUse::kExchange));
  add(account, TimeUse::kWaiting, waited);
  add(account, TimeUse::kExchange, -waited);
}

// What one process would have computed and evaluated in place of the ranks of `start`.
double one_process_of(const StartTimes& start) {
  const double compute = start.rank_times.empty() ? start.compute_s : median_compute(start.rank_times);
  return static_cast<double>(start.started.ranks) * (compute + start.evaluation_s);
}

void estimate_one_process(TimeAccount& account, const RunTimes& times, bool whole) {
  const auto all = [&](auto is) { return std::all_of(times.starts.begin(), times.starts.end(), is); };
  if (all([](const StartTimes& s) { return s.started.ranks == 1; })) {
    account.one_process_why = "This run is one process.";
    return;
  }
  const std::string measure =
      "`starling compare --runs all-reduce --budget samples=10000` with the flags of "
      "this run measures it.";
  if (account.steps == 0) {
    account.one_process_why = "It is not known, because the run made no step.";
    return;
  }
  if (account.shares_cores()) {
    account.one_process_why =
        "It is not known, because ranks shared cores, and their times contain the wait "
        "for a core. " +
        measure;
    return;
  }
  account.one_process_s = account.of(TimeUse::kData) + account.of(TimeUse::kCheckpoints) +
                          account.of(TimeUse::kStartup) + account.of(TimeUse::kEnding) +
                          account.of(TimeUse::kOther);
  for (const StartTimes& start : times.starts) *account.one_process_s += one_process_of(start);
  const int64_t ranks = account.started.ranks;
  const bool equal = all([&](const StartTimes& s) { return s.started.ranks == ranks; });
  account.one_process_why = fmt::format(
      "This is an estimate: {} times the computation of {} and the evaluation, without any exchange, and "
      "everything else as in this run. {}",
      equal ? fmt::format("{}", ranks) : "the number of ranks", whole ? "a typical rank" : "the leading rank",
      measure);
}

void say_what_is_missing(TimeAccount& account, const RunTimes& times, bool whole) {
  const auto all = [&](auto known) { return std::all_of(times.starts.begin(), times.starts.end(), known); };
  const auto say = [&](const std::string& text) { account.missing.push_back(text); };
  const std::string earlier = "because an earlier version of Starling wrote it; a new run says it";
  const bool ended = all([](const StartTimes& s) { return s.ended; });
  if (!whole && account.started.ranks > 1) {
    say(fmt::format(
        "The times of each rank are missing for {}, {}. Waiting for a late rank counts as exchange "
        "there.",
        times.starts.size() == 1 ? "this run" : "some starts",
        ended ? earlier : "because a rank reports them when the run ends, also by Ctrl-C or SIGTERM"));
  }
  if (!all([](const StartTimes& s) { return s.evaluation_known; }))
    say(fmt::format("The time of evaluations is missing and counts as other, {}.", earlier));
  if (!account.phases_known)
    say(fmt::format("The phases of the exchange are unknown, {}.",
                    ended ? earlier : "because a run reports them when it ends"));
  if (!all([](const StartTimes& s) { return s.checkpoint_known; }))
    say("The time by which checkpoints delayed the run is missing and counts as other. A run reports it when "
        "it ends, and earlier versions of Starling do not report it.");
  if (!all([](const StartTimes& s) { return s.started.startup_s > 0; }))
    say(fmt::format("The start-up is missing, {}.", earlier));
  if (times.bad_lines > 0)
    say(fmt::format("{} of events.jsonl cannot be read, for example because it is only half written.",
                    times.bad_lines == 1 ? "One line" : fmt::format("{} lines", times.bad_lines)));
  if (!account.spec)
    say("config.toml is missing or cannot be read, so the advice does not know the flags "
        "and may name one that this run refuses.");
}

}  // namespace

const char* name_of(TimeUse use) {
  return kUses[static_cast<int>(use)].name;
}

const char* key_of(TimeUse use) {
  return kUses[static_cast<int>(use)].key;
}

double TimeAccount::statistic(const std::string& key, double otherwise) const {
  const auto it = statistics.find(key);
  return it == statistics.end() ? otherwise : it->second;
}

double TimeAccount::bytes_per_rank_and_step() const {
  if (statistics_steps <= 0 || statistics_ranks <= 0) return 0;
  return statistic("step_bytes", 0) / static_cast<double>(statistics_steps) /
         static_cast<double>(statistics_ranks);
}

bool TimeAccount::shares_cores() const {
  return started.local_cores > 0 && started.local_processes * started.threads > started.local_cores;
}

TimeAccount account_of(const RunTimes& times, const std::optional<RunSpec>& spec) {
  TimeAccount account;
  account.spec = spec;
  account.exchange = traits_of(spec);
  const StartTimes& last = times.starts.back();
  account.started = last.started;
  account.ended = last.ended;
  account.interrupted = last.interrupted;
  account.starts = std::ssize(times.starts);
  const std::set<std::string> hosts(last.started.hosts.begin(), last.started.hosts.end());
  account.hosts = std::max<int64_t>(1, std::ssize(hosts));
  for (const StartTimes& start : times.starts) add_start(account, start);
  // Clocks are read one after another, so the parts may exceed the whole by a little.
  const double known = std::accumulate(account.seconds, account.seconds + kTimeUses, 0.0);
  account.wall_s = std::max(account.wall_s, known);
  add(account, TimeUse::kOther, account.wall_s - known);
  if (!account.phases_known) account.phases.clear();  // a part of them would mislead
  const bool whole = std::all_of(times.starts.begin(), times.starts.end(), [](const StartTimes& start) {
    return !start.rank_times.empty() || start.steps == 0;
  });
  if (ranks_wait(account)) divide_exchange(account, times);
  estimate_one_process(account, times, whole);
  say_what_is_missing(account, times, whole);
  return account;
}

}  // namespace starling
