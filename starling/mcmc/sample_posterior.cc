#include "starling/mcmc/sample_posterior.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/message_tags.h"
#include "starling/job/folder_lock.h"
#include "starling/job/job_checkpoint.h"
#include "starling/mcmc/diagnostics.h"
#include "starling/mcmc/draws_checkpoint.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kFewestDraws = 4;
constexpr milliseconds kLongestLook{50};  // between two looks for a message

// What a rank says when it samples no more. Rank 0 answers with the same, for all ranks.
struct SamplingEnd {
  int64_t interrupted = 0;
  uint64_t start_bytes = 0;     // that this rank sent before it sampled
  uint64_t sampling_bytes = 0;  // that it sent while it sampled
  double seconds = 0;
};

// What precedes the draws of a sub-posterior on their way to rank 0.
struct DrawsHead {
  ChainReport chain;
  double resumed_from = 0;
  double seconds = 0;
};

// The sub-posteriors first … last - 1 of a rank.
struct Share {
  int first = 0, last = 0;
};
Share share_of(int count, int ranks, int rank) {
  const auto bound = [&](int64_t r) { return static_cast<int>(int64_t{count} * r / ranks); };
  return {bound(rank), bound(rank + 1)};
}

// Waits for a message without a limit of time, because ranks may sample for hours. The loss of a rank ends
// the wait.
template <typename T>
T wait_for(Group& group, int peer) {
  T message;
  milliseconds pause{1};
  while (!group.try_recv(&message, sizeof(message), peer, kSamplingTag)) {
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestLook);
  }
  return message;
}

// One sub-posterior of this rank.
struct Task {
  Task(const McmcOptions& options, const Posterior& posterior, int number, int count,
       const LockHolder& holder)
      : density(posterior, number, count),
        chain(make_chain(options.chain, density, posterior.start(),
                         key_of(options.seed, static_cast<uint64_t>(number), static_cast<uint64_t>(count)))),
        checkpoint(options, posterior, number, count, holder) {
    result.draws.dimensions = posterior.dimensions();
    result.resumed_from = checkpoint.load(*chain, result.draws);
    transitions = std::max<int64_t>(0, result.resumed_from);
  }

  SubPosterior density;
  std::unique_ptr<Chain> chain;
  DrawsCheckpoint checkpoint;
  SubPosteriorResult result;
  int64_t transitions = 0;
};

// Samples the sub-posteriors of this rank. Returns false after an interruption.
bool sample_all(const McmcOptions& options, const McmcParts& parts,
                std::vector<std::unique_ptr<Task>>& tasks) {
  int64_t done = 0;
  for (const auto& task : tasks) {
    const int64_t end = options.chain.warmup + options.draws;
    const Nanoseconds begin = parts.clock.now();
    while (task->transitions < end) {
      if (parts.stop != nullptr && *parts.stop) break;
      task->chain->advance();
      if (++task->transitions > options.chain.warmup) {
        const std::span<const double> x = task->chain->position();
        task->result.draws.values.insert(task->result.draws.values.end(), x.begin(), x.end());
      }
      if (options.checkpoint_every > 0 && task->transitions % options.checkpoint_every == 0)
        task->checkpoint.save(task->transitions, *task->chain, task->result.draws);
      if (parts.on_transition) parts.on_transition(++done);
    }
    task->checkpoint.save(task->transitions, *task->chain, task->result.draws);
    task->result.seconds = to_seconds(parts.clock.now() - begin);
    if (task->transitions < end) return false;
    // A checkpoint of a longer run has more draws.
    task->result.draws.values.resize(static_cast<size_t>(options.draws * task->result.draws.dimensions));
    task->result.chain = task->chain->report();
  }
  return true;
}

// Returns on all ranks how sampling has ended. Rank 0 gets the sums of all ranks.
SamplingEnd meet(Group& group, SamplingEnd own) {
  if (group.rank() != 0) {
    send(group, &own, sizeof(own), 0, kSamplingTag);
    return wait_for<SamplingEnd>(group, 0);
  }
  for (int peer = 1; peer < group.size(); ++peer) {
    const auto other = wait_for<SamplingEnd>(group, peer);
    own.interrupted |= other.interrupted;
    own.start_bytes += other.start_bytes;
    own.sampling_bytes += other.sampling_bytes;
    own.seconds = std::max(own.seconds, other.seconds);
  }
  for (int peer = 1; peer < group.size(); ++peer) send(group, &own, sizeof(own), peer, kSamplingTag);
  return own;
}

// Sends the draws of this rank to rank 0, which returns those of all sub-posteriors in order.
std::vector<SubPosteriorResult> gather(const McmcOptions& options, const McmcParts& parts,
                                       std::vector<std::unique_ptr<Task>>& tasks) {
  Group& group = parts.group;
  std::vector<SubPosteriorResult> all;
  for (const auto& task : tasks) {
    SubPosteriorResult& own = task->result;
    if (group.rank() == 0) {
      all.push_back(std::move(own));
      continue;
    }
    const DrawsHead head{own.chain, static_cast<double>(own.resumed_from), own.seconds};
    send(group, &head, sizeof(head), 0, kSamplingTag);
    send(group, own.draws.values.data(), own.draws.values.size() * sizeof(double), 0, kSamplingTag);
  }
  if (group.rank() != 0) return all;
  const int count = sub_posteriors_of(options, group.size());
  for (int peer = 1; peer < group.size(); ++peer) {
    const Share share = share_of(count, group.size(), peer);
    for (int number = share.first; number < share.last; ++number) {
      DrawsHead head;
      recv(group, &head, sizeof(head), peer, kSamplingTag);
      SubPosteriorResult& got = all.emplace_back();
      got.draws.dimensions = parts.posterior.dimensions();
      got.draws.values.resize(static_cast<size_t>(options.draws * got.draws.dimensions));
      recv(group, got.draws.values.data(), got.draws.values.size() * sizeof(double), peer, kSamplingTag);
      got.chain = head.chain;
      got.resumed_from = static_cast<int64_t>(head.resumed_from);
      got.seconds = head.seconds;
    }
  }
  return all;
}

void diagnose(SubPosteriorResult& result) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  result.smallest_size = kInfinite;
  for (int64_t i = 0; i < result.draws.dimensions; ++i) {
    const std::vector<double> series = result.draws.series(i);
    const double r_hat = split_r_hat(series), size = effective_size(series);
    // A parameter that has not moved.
    result.largest_r_hat = std::max(result.largest_r_hat, std::isnan(r_hat) ? kInfinite : r_hat);
    result.smallest_size = std::min(result.smallest_size, std::isnan(size) ? 0 : size);
  }
}

uint64_t hash_of_settings(const McmcOptions& options, const Posterior& posterior) {
  const ChainOptions& chain = options.chain;
  const std::string text =
      fmt::format("{} {} {} {} {} {:a} {:a} {} {} {} {} {}", options.sub_posteriors, options.draws,
                  options.seed, static_cast<int>(chain.sampler), chain.warmup, chain.target_acceptance,
                  chain.length, chain.most_steps, static_cast<int>(options.combination),
                  posterior.dimensions(), posterior.samples(), options.checkpoint.empty());
  uint64_t hash = 0;
  for (const char c : text) hash = mix64(hash + kGolden + static_cast<unsigned char>(c));
  return hash;
}

// Throws ConfigError on all ranks if they would sample different problems.
void compare_settings(const McmcOptions& options, const McmcParts& parts) {
  const uint64_t own = hash_of_settings(options, parts.posterior);
  std::vector<uint64_t> all(static_cast<size_t>(parts.group.size()));
  all_gather(parts.group, &own, all.data(), sizeof(own), DataType::kUint8);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw ConfigError(
          "sample_posterior",
          fmt::format("rank {} has other options, parameters or numbers of samples than rank 0; "
                      "pass equal ones on all ranks",
                      rank));
}

// Makes the tasks of this rank. The run has the lock of the folder of all checkpoints.
std::vector<std::unique_ptr<Task>> make_tasks(const McmcOptions& options, const McmcParts& parts) {
  const int count = sub_posteriors_of(options, parts.group.size());
  const Share share = share_of(count, parts.group.size(), parts.group.rank());
  std::vector<std::unique_ptr<Task>> tasks;
  agree_on_success(parts.group, [&] {
    LockHolder holder;  // this run
    if (!options.checkpoint.empty()) holder = last_lock_holder(options.checkpoint);
    for (int number = share.first; number < share.last; ++number)
      tasks.push_back(std::make_unique<Task>(options, parts.posterior, number, count, holder));
  });
  return tasks;
}

// Samples. A fault also ends the waits of the other ranks, which may sample for long.
bool sample_or_abort(const McmcOptions& options, const McmcParts& parts,
                     std::vector<std::unique_ptr<Task>>& tasks) {
  try {
    return sample_all(options, parts, tasks);
  } catch (const std::exception& error) {
    parts.group.abort(error.what());
    throw;
  }
}

}  // namespace

int sub_posteriors_of(const McmcOptions& options, int ranks) {
  return options.sub_posteriors == 0 ? ranks : options.sub_posteriors;
}

void check_mcmc(const McmcOptions& options, int ranks) {
  check_chain(options.chain);
  if (options.draws < kFewestDraws)
    throw ConfigError("--draws", fmt::format("{} draws; use at least {}", options.draws, kFewestDraws));
  if (options.sub_posteriors != 0 && options.sub_posteriors < ranks)
    throw ConfigError("--sub-posteriors", fmt::format("{} for {} ranks; use at least one per rank",
                                                      options.sub_posteriors, ranks));
  if (options.checkpoint_every < 0)
    throw ConfigError("--checkpoint-every",
                      fmt::format("{} transitions; use 0 or more", options.checkpoint_every));
}

McmcResult sample_posterior(const McmcOptions& options, const McmcParts& parts) {
  Group& group = parts.group;
  check_mcmc(options, group.size());
  if (parts.posterior.dimensions() < 1)
    throw ConfigError("Posterior::dimensions", "a posterior has at least one parameter");
  if (parts.posterior.samples() < 0)
    throw ConfigError("Posterior::samples",
                      fmt::format("{} samples; return 0 or more", parts.posterior.samples()));
  uint64_t before = group.traffic().sent();
  compare_settings(options, parts);
  std::unique_ptr<FolderLock> lock;  // of the folder of all checkpoints, until the end
  if (!options.checkpoint.empty()) {
    const uint64_t compared = group.traffic().sent();
    lock = lock_together(group, options.checkpoint);
    before += group.traffic().sent() - compared;  // the bytes of a wait are not counted
  }
  auto tasks = make_tasks(options, parts);
  const TrafficCount ready = group.traffic();
  const Nanoseconds begin = parts.clock.now();
  SamplingEnd end;
  end.interrupted = sample_or_abort(options, parts, tasks) ? 0 : 1;
  end.seconds = to_seconds(parts.clock.now() - begin);
  end.start_bytes = ready.sent() - before;
  const TrafficCount sampled = group.traffic();
  end.sampling_bytes = sampled.sent() - ready.sent();
  end = meet(group, end);
  McmcResult result;
  result.interrupted = end.interrupted != 0;
  if (result.interrupted) return result;
  result.sub_posteriors = gather(options, parts, tasks);
  if (group.rank() != 0) return result;
  // Rank 0 sends or receives every byte of this part. Some may arrive while rank 0 still samples.
  const TrafficCount gathered = group.traffic();
  result.bytes = {.start = end.start_bytes,
                  .sampling = end.sampling_bytes,
                  .gathering = gathered.sent() - sampled.sent() + gathered.received() - ready.received()};
  result.sampling_s = end.seconds;
  std::vector<PosteriorDraws> draws;
  for (SubPosteriorResult& part : result.sub_posteriors) {
    diagnose(part);
    draws.push_back(part.draws);
  }
  result.combined = combine_draws(options.combination, draws, options.seed);
  return result;
}

}  // namespace starling
