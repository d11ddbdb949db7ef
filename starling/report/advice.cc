#include "starling/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "starling/report/accepted_flags.h"
#include "starling/spec/emulation.h"
#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

using Candidates = std::vector<Advice>;

// The share of the run's time from which on a category is worth an advice.
constexpr double kWorthwhile = 0.1;
// Evaluations and the exchange within a host are needed, so their advice begins at a larger share.
constexpr double kWorthwhileIfNeeded = 0.2;
// Bytes that a rank sends per step. Below them a network is slow by its latency, and fewer bytes do not help.
constexpr double kLatencyBytes = 64e3;

int64_t multiple_of(int64_t factor, int64_t value) {
  constexpr int64_t kLargest = int64_t{1} << 40;  // of a value that a configuration may hold by mistake
  return factor * std::min(value, kLargest);
}

double exposed_share(const TimeAccount& a) {
  return a.share(TimeUse::kExchange) + a.share(TimeUse::kWaiting);
}

bool between_hosts(const TimeAccount& a) {
  if (a.hosts > 1) return true;
  if (!a.spec) return false;
  return !a.spec->comm.shared_memory || parse_emulation(a.spec->train.emulate).shapes_links();
}

bool divides_model(const TimeAccount& a) {
  if (!a.spec) return false;
  const MeshSpec mesh = parse_mesh(a.spec->train.mesh, a.spec->train.ranks);
  return mesh.stage > 1 || mesh.tensor > 1 || a.spec->train.hybrid != "none" ||
         a.spec->train.shard != Shard::kNone;
}

// Adds --global-batch with twice the batch, if the batch is known.
void add_larger_batch(Candidates& out, const TimeAccount& a, double gain, const std::string& why) {
  if (a.started.global_batch <= 0) return;
  out.push_back(
      {gain, fmt::format("--global-batch {}", multiple_of(2, a.started.global_batch)),
       why + " A larger batch has more computation for each exchange. Adapt the learning rate to it."});
}

void add_local_sgd(Candidates& out, double gain, const std::string& why) {
  out.push_back({gain, "--exchange local-sgd --every 8", why + " Local SGD exchanges once in 8 steps."});
}

// More hosts do not help an exchange in the memory of one host.
void add_hosts(Candidates& out, const TimeAccount& a, double gain, const std::string& why) {
  if (!a.exchange.one_host) out.push_back({gain, "--hosts HOST,HOST", why});
}

// Adds fewer ranks: `most`, or the next smaller number that the run accepts.
void add_ranks(Candidates& out, int64_t most, double gain, const std::string& why) {
  constexpr int64_t kTried = 64;
  for (int64_t ranks = most; ranks >= 1 && ranks > most - kTried; --ranks)
    out.push_back({gain, fmt::format("-n {}", ranks), why});
  if (most > kTried) out.push_back({gain, "-n 1", why});
}

// Ranks that share cores wait for a core instead of computing. On one host, a rank that has no core is also
// what the other ranks wait for.
Candidates share_cores(const TimeAccount& a) {
  if (!a.shares_cores()) return {};
  const RunStarted& s = a.started;
  const double needed = static_cast<double>(s.local_processes * s.threads);
  double gain = (1 - static_cast<double>(s.local_cores) / needed) *
                (a.share(TimeUse::kComputation) + a.share(TimeUse::kEvaluation));
  if (!between_hosts(a)) gain += exposed_share(a);
  const std::string why = fmt::format("The run has {} threads on a host with {} cores, so they take turns.",
                                      s.local_processes * s.threads, s.local_cores);
  Candidates out;
  const int64_t threads = std::max<int64_t>(1, s.local_cores / s.local_processes);
  if (threads < s.threads) out.push_back({gain, fmt::format("--threads {}", threads), why});
  const int64_t ranks = std::max<int64_t>(1, s.local_cores * s.ranks / s.local_processes);
  if (ranks < s.ranks) add_ranks(out, ranks, gain, why);
  add_hosts(out, a, gain, why + " More hosts have more cores.");
  return out;
}

// Workers of a server with a bounded staleness wait for a rank that is always slow, once they are so many
// steps ahead of it. Without a bound they never wait.
void add_asynchronous(Candidates& out, double gain, const std::string& why) {
  const std::string goes_on = why + " Workers of an asynchronous parameter server do not wait for it.";
  out.push_back({gain, "--exchange parameter-server --staleness inf", goes_on});
  out.push_back({gain, "--exchange downpour", goes_on});
}

// Returns true if the run can divide its batches by the measured speed of the ranks, and does not.
bool may_share(const TimeAccount& a) {
  return a.spec && a.spec->data.share != "auto" && accepts_flags(*a.spec, "--share auto");
}

// All other ranks wait for one rank.
Candidates late_rank(const TimeAccount& a) {
  if (!a.late || a.late->share < kWorthwhile) return {};
  const LateRank& late = *a.late;
  const double gain = late.share;
  const std::string who = fmt::format("rank {}{}", late.rank, late.host.empty() ? "" : " on " + late.host);
  if (late.by_data)
    return {{gain, fmt::format("--set data.workers={}", a.spec ? multiple_of(2, a.spec->data.workers) : 2),
             fmt::format("The other ranks wait for {}, which waits for its data.", who)}};
  std::string why = fmt::format("The other ranks wait for {}, which computes longer.", who);
  if (late.slowness > 0)
    why = fmt::format("The other ranks wait for {}, which needs {:.1f} times as long for its share.", who,
                      late.slowness);
  Candidates out;
  if (a.spec && parse_mesh(a.spec->train.mesh, a.spec->train.ranks).stage > 1)
    out.push_back({gain,
                   fmt::format("--schedule interleaved --micro-batches {}",
                               multiple_of(2, a.spec->pipeline.micro_batches)),
                   why + " Its stage holds more work than the other stages."});
  const bool shares = may_share(a);
  const std::string examines = fmt::format(
      " The command examines that host. If it finds nothing that can be repaired, leave the host out{}.",
      shares ? ", or give it fewer samples by --share auto" : "");
  // A name that begins with a dash would be an option of ssh.
  if (a.hosts > 1 && !late.host.empty() && late.host[0] != '-')
    out.push_back({gain, fmt::format("ssh {} starling doctor", shell_word(late.host)), why + examines});
  if (shares)
    out.push_back({gain, "--share auto",
                   why + " The run then measures its ranks and gives a slower rank fewer samples."});
  add_asynchronous(out, gain, why);
  out.push_back(
      {gain, "starling doctor", why + " Run the command on the host of that rank. It examines the host."});
  return out;
}

// The idle time of stages that wait for micro-batches. It is a part of the exposed communication.
Candidates pipeline_bubble(const TimeAccount& a) {
  const double bubble = a.statistic("bubble_mean", a.statistic("bubble", 0));
  if (!a.spec || a.statistic("stages", 1) < 2 || bubble < kWorthwhileIfNeeded) return {};
  const double planned = a.statistic("bubble_planned", bubble), gain = exposed_share(a);
  const std::string idle = fmt::format("The stages are idle for {} of a step, {} of it by the schedule.",
                                       percent(bubble), percent(planned));
  const std::string more = " More micro-batches make the idle share smaller.";
  const int64_t twice = multiple_of(2, a.spec->pipeline.micro_batches);
  Candidates out = {{gain, fmt::format("--micro-batches {}", twice), idle + more}};
  if (a.spec->pipeline.schedule != "interleaved")
    out.push_back(
        {gain, "--schedule interleaved", idle + " Interleaved stages make the idle share smaller."});
  if (a.started.global_batch > 0)
    out.push_back(
        {gain,
         fmt::format("--micro-batches {} --global-batch {}", twice, multiple_of(2, a.started.global_batch)),
         idle + more});
  return out;
}

// The exchange of servers: the larger direction first, or both if the phases are unknown.
Candidates slow_servers(const TimeAccount& a, double share) {
  const bool plain_push = a.spec->exchange.codec == "none",
             plain_pull = a.spec->exchange.pull_codec == "none";
  const auto phase = [&](const char* name) {
    const auto it = a.phases.find(name);
    return it == a.phases.end() ? 0 : it->second;
  };
  const bool pulls = phase("parameters") > phase("gradients");
  std::string why = fmt::format("The exchange with the servers takes {} of the time", percent(share));
  if (a.phases_known) why += pulls ? ", most of it the pulls" : ", most of it the pushes";
  why += ".";
  const std::string fewer = why + " A codec sends them in fewer bytes.";
  Candidates out;
  if (!a.phases_known) {
    if (plain_push && plain_pull)
      out.push_back(
          {share, "--codec int8 --pull-codec bf16", why + " Codecs send pushes and pulls in fewer bytes."});
  } else if (pulls) {
    if (plain_pull) out.push_back({share, "--pull-codec bf16", fewer});
  } else if (plain_push) {
    out.push_back({share, "--codec int8", fewer});
  }
  add_local_sgd(out, share, why);
  add_larger_batch(out, a, share, why);
  return out;
}

// The exchange of rounds: fewer rounds.
Candidates slow_rounds(const TimeAccount& a, double share, const std::string& why) {
  Candidates out;
  const int64_t every = a.spec->exchange.every;
  const int64_t from = exchange_traits(*a.spec).reads("local_from") ? a.spec->exchange.local_from : 0;
  const int64_t rounds = exchange_traits(*a.spec).reads("rounds") ? a.spec->exchange.rounds : 0;
  if (rounds > 1)
    out.push_back({share, fmt::format("--rounds {}", rounds / 2),
                   why + fmt::format(" The run has {} rounds, and may have fewer.", rounds)});
  if (rounds == 0)
    out.push_back({share, fmt::format("--every {}", multiple_of(2, every)),
                   why + fmt::format(" It happens once in {} steps{}, and may happen less often.", every,
                                     from > 0 ? fmt::format(" after step {}", from) : "")});
  add_larger_batch(out, a, share, why);
  return out;
}

// The network between the ranks.
Candidates slow_network(const TimeAccount& a) {
  const double share = a.share(TimeUse::kExchange);
  if (a.started.ranks < 2 || !between_hosts(a) || share < kWorthwhile) return {};
  const std::string why = fmt::format("The exchange between the ranks takes {} of the time.", percent(share));
  if (!a.spec) return {{share, "--codec int8", why + " A codec sends gradients in fewer bytes."}};
  Candidates out;
  const double bytes = a.bytes_per_rank_and_step();
  const bool by_latency = bytes > 0 && bytes < kLatencyBytes;
  if (divides_model(a)) {
    // The flags that a run refuses are left out, so ZeRO 3 gets no codec.
    if (a.spec->train.shard != Shard::kNone && a.spec->exchange.codec == "none" && !by_latency)
      out.push_back({share, "--codec int8",
                     why + " The codec sends gradients in a quarter of the bytes. Parameters are sent as "
                           "they are."});
    add_larger_batch(out, a, share, why);
    return out;
  }
  if (a.exchange.lockstep == Lockstep::kRounds || a.exchange.center) return slow_rounds(a, share, why);
  if (a.exchange.servers) return slow_servers(a, share);
  if (by_latency)
    add_local_sgd(out, share,
                  why + fmt::format(" A step sends {} per rank, so the delay of the network counts, not its "
                                    "bandwidth.",
                                    bytes_text(static_cast<uint64_t>(bytes))));
  else if (a.exchange.codec && a.spec->exchange.codec == "none")
    out.push_back({share, "--codec int8", why + " The codec sends gradients in a quarter of the bytes."});
  add_local_sgd(out, share, why);
  add_larger_batch(out, a, share, why);
  return out;
}

// The exchange through the memory of one host.
Candidates slow_exchange(const TimeAccount& a) {
  const double share = a.share(TimeUse::kExchange);
  if (a.started.ranks < 2 || between_hosts(a) || share < kWorthwhileIfNeeded) return {};
  Candidates out;
  add_larger_batch(
      out, a, share,
      fmt::format("The exchange between ranks of one host takes {} of the time.", percent(share)));
  return out;
}

Candidates slow_data(const TimeAccount& a) {
  const double share = a.share(TimeUse::kData);
  if (share < kWorthwhile) return {};
  const std::string why = fmt::format("Training waits for data for {} of the time.", percent(share));
  const int64_t workers = a.spec ? a.spec->data.workers : 1;
  const RunStarted& s = a.started;
  const double needed = static_cast<double>(s.local_processes) * static_cast<double>(s.threads + workers);
  const bool cores_left = s.local_cores == 0 || needed <= static_cast<double>(s.local_cores);
  const bool pictures = a.spec && a.spec->data.source.starts_with("images:");
  if (!cores_left && pictures)
    return {{share, "starling data serve --data " + shell_word(a.spec->data.source),
             why + " The cores of this host are busy. A data server on another host decodes the pictures "
                   "there; the ranks read them by --data served:HOST:PORT."}};
  return {{share, fmt::format("--set data.workers={}", multiple_of(2, workers)),
           why + fmt::format(" Each rank reads ahead with {}.",
                             workers == 1 ? "one thread" : fmt::format("{} threads", workers))}};
}

Candidates slow_evaluation(const TimeAccount& a) {
  const double share = a.share(TimeUse::kEvaluation);
  if (share < kWorthwhileIfNeeded || a.test_samples <= 0) return {};
  // With this number of samples, the evaluations take a twentieth of the time of the rest of the run.
  const double fewer = static_cast<double>(a.test_samples) * 0.05 * (1 - share) / share;
  const int64_t samples = std::max<int64_t>(1, std::llround(fewer));
  return {{share, fmt::format("--set data.test_samples={}", samples),
           fmt::format("Evaluations take {} of the time. The run tests {} samples after every epoch.",
                       percent(share), with_thousands(a.test_samples))}};
}

// A start that is shorter than the interval writes checkpoints for other reasons, such as its end. Fewer
// checkpoints by time would change nothing there.
Candidates many_checkpoints(const TimeAccount& a) {
  const double share = a.share(TimeUse::kCheckpoints);
  if (share < kWorthwhile || !a.spec) return {};
  const CheckpointSpec& checkpoint = a.spec->checkpoint;
  const std::string why = fmt::format("Training waits for checkpoints for {} of the time.", percent(share));
  Candidates out;
  if (checkpoint.every > 0)
    out.push_back({share, fmt::format("--set checkpoint.every={}", multiple_of(4, checkpoint.every)),
                   why + fmt::format(" The run writes one every {} steps.", checkpoint.every)});
  if (checkpoint.minutes > 0 && a.longest_start_s > 60 * checkpoint.minutes)
    out.push_back({share, fmt::format("--set checkpoint.minutes={:g}", 4 * checkpoint.minutes), why});
  return out;
}

Candidates lost_ranks(const TimeAccount& a) {
  const double share = a.share(TimeUse::kRecovery);
  if (share < kWorthwhile) return {};
  const std::string dir = a.spec && !a.spec->run.dir.empty() ? a.spec->run.dir : "RUN_DIR";
  return {{share, "starling doctor --recorder " + shell_word((dir[0] == '-' ? "./" : "") + dir),
           fmt::format("Training stopped for {} of the time because ranks were lost. The command prints "
                       "what each rank did last.",
                       percent(share))}};
}

// Several ranks are slower than one.
Candidates fewer_ranks(const TimeAccount& a) {
  if (!a.one_process_s || a.wall_s <= 0 || *a.one_process_s >= a.wall_s || divides_model(a)) return {};
  return {{1 - *a.one_process_s / a.wall_s, "-n 1",
           fmt::format("One process would take about {}, less than these {} ranks.",
                       duration(*a.one_process_s), a.started.ranks)}};
}

Candidates short_run(const TimeAccount& a) {
  const double share = a.share(TimeUse::kStartup) + a.share(TimeUse::kEnding);
  if (share < 0.5) return {};
  const int64_t steps = std::max<int64_t>(100, multiple_of(10, a.steps));
  return {{share, fmt::format("--steps {}", steps),
           fmt::format("The run is too short to judge: its start-up and its end take {} of the time.",
                       percent(share))}};
}

// Computation limits the run.
Candidates more_computers(const TimeAccount& a) {
  const double share = a.share(TimeUse::kComputation);
  if (share < 0.5) return {};
  const RunStarted& s = a.started;
  const int64_t used = s.local_processes * s.threads;
  const std::string why = fmt::format("Computation takes {} of the time.", percent(share));
  constexpr double kLast = 1e-3;  // another rule that applies comes first
  Candidates out;
  for (int64_t times = std::min<int64_t>(64, s.local_cores / std::max<int64_t>(1, used)); times >= 2; --times)
    out.push_back({kLast, fmt::format("-n {}", multiple_of(times, s.ranks)),
                   why + fmt::format(" The host has {} cores, and the run uses {}.", s.local_cores, used)});
  if (a.spec && a.spec->train.precision == Precision::kFp32)
    out.push_back({kLast, "--precision bf16",
                   why + " Matrix products in bf16 are faster on processors with AMX or AVX-512 BF16; "
                         "`starling doctor` says whether this one has them."});
  add_hosts(out, a, kLast, why + " More hosts divide the work further.");
  return out;
}

constexpr AdviceRule kRules[] = {
    {"shared-cores", share_cores},   {"late-rank", late_rank},          {"pipeline-bubble", pipeline_bubble},
    {"network", slow_network},       {"exchange", slow_exchange},       {"data", slow_data},
    {"evaluation", slow_evaluation}, {"checkpoints", many_checkpoints}, {"lost-ranks", lost_ranks},
    {"one-process", fewer_ranks},    {"short-run", short_run},          {"computation", more_computers},
};

}  // namespace

std::span<const AdviceRule> advice_rules() {
  return kRules;
}

Advice advice_of(const AdviceRule& rule, const TimeAccount& account) {
  for (Advice& advice : rule.candidates(account)) {
    const bool command = !advice.what.starts_with('-');
    if (command || !account.spec || accepts_flags(*account.spec, advice.what)) return std::move(advice);
  }
  return {};
}

ChosenAdvice choose_advice(const TimeAccount& account) {
  ChosenAdvice best;
  for (const AdviceRule& rule : kRules) {
    Advice advice = advice_of(rule, account);
    if (advice.gain > best.advice.gain) best = {rule.name, std::move(advice)};
  }
  return best;
}

}  // namespace starling
