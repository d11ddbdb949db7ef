#include "starling/commands/bench_comm.h"
#include "starling/commands/end_of_list.h"
#include "starling/telemetry/text_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
                                     CollectiveKind::kBroadcast, CollectiveKind::kBarrier};
constexpr int kMostRepetitions = 25;

// Returns small integers, for which any order of summation gives the same fp32 result.
float value_of(int rank, size_t i) {
  return static_cast<float>((static_cast<size_t>(rank) * 13 + i * 7) % 5);
}

// One collective of one size on one group, with its buffers.
class Trial {
 public:
  // `whole` is the number of elements of the whole tensor, a multiple of the ranks.
  Trial(Group& group, CollectiveKind kind, size_t whole)
      : group_(group), kind_(kind), whole_(whole), part_(whole / static_cast<size_t>(group.size())) {
    const bool from_part = kind == CollectiveKind::kAllGather,
               to_part = kind == CollectiveKind::kReduceScatter;
    in_.resize(from_part ? part_ : whole_);
    out_.resize(to_part ? part_ : whole_);
    splits_.assign(static_cast<size_t>(group.size()), part_);
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = value_of(group.rank(), i);
  }

  void run() {
    switch (kind_) {
      case CollectiveKind::kAllReduce:
        return all_reduce(group_, out_.data(), whole_, DataType::kFp32, ReduceOp::kSum);
      case CollectiveKind::kReduceScatter:
        return reduce_scatter(group_, in_.data(), out_.data(), part_, DataType::kFp32, ReduceOp::kSum);
      case CollectiveKind::kAllGather:
        return all_gather(group_, in_.data(), out_.data(), part_, DataType::kFp32);
      case CollectiveKind::kAllToAll:
        return all_to_all(group_, in_.data(), splits_, out_.data(), splits_, DataType::kFp32);
      case CollectiveKind::kBroadcast:
        return broadcast(group_, out_.data(), whole_, DataType::kFp32, 0);
      default:
        return barrier(group_);
    }
  }

  // Runs the collective once and returns this rank's number of wrong elements.
  uint64_t check() {
    const bool in_place = kind_ == CollectiveKind::kAllReduce || kind_ == CollectiveKind::kBroadcast;
    if (in_place) std::copy(in_.begin(), in_.end(), out_.begin());
    run();
    if (kind_ == CollectiveKind::kBarrier) return 0;
    uint64_t wrong = 0;
    for (size_t i = 0; i < out_.size(); ++i) wrong += out_[i] != expected(i) ? 1 : 0;
    return wrong;
  }

 private:
  float expected(size_t i) const {
    const size_t me = static_cast<size_t>(group_.rank());
    const int from = part_ > 0 ? static_cast<int>(i / part_) : 0;
    if (kind_ == CollectiveKind::kBroadcast) return value_of(0, i);
    if (kind_ == CollectiveKind::kAllGather) return value_of(from, i % part_);
    if (kind_ == CollectiveKind::kAllToAll) return value_of(from, me * part_ + i % part_);
    const size_t at = kind_ == CollectiveKind::kReduceScatter ? me * part_ + i : i;
    float sum = 0;
    for (int r = 0; r < group_.size(); ++r) sum += value_of(r, at);
    return sum;
  }

  Group& group_;
  const CollectiveKind kind_;
  const size_t whole_, part_;
  std::vector<float> in_, out_;
  std::vector<size_t> splits_;
};

// Returns this rank's seconds per collective, over `times` collectives.
double time_of(Group& group, Trial& trial, int times) {
  barrier(group);
  const auto start = SteadyClock::now();
  for (int i = 0; i < times; ++i) trial.run();
  return std::chrono::duration<double>(SteadyClock::now() - start).count() / times;
}

double largest_of(Group& group, double value) {
  all_reduce(group, &value, 1, DataType::kFp64, ReduceOp::kMax);
  return value;
}

class CollectiveBench {
 public:
  CollectiveBench(const GroupMaker& make, const CommBench& options) : make_(make), options_(options) {
    const Group& plain = group_by(Algorithm::kAuto);
    chooses_ = !options.mpi && plain.local_ranks().size() < static_cast<size_t>(plain.size());
  }

  std::vector<CommTiming> run() {
    const auto cells = static_cast<double>(sizes().size() * std::size(kKinds));
    std::vector<CommTiming> all;
    for (const CollectiveKind kind : kKinds) {
      for (const uint64_t bytes : kind == CollectiveKind::kBarrier ? std::vector<uint64_t>{0} : sizes())
        measure(kind, bytes, options_.seconds / cells, all);
    }
    return all;
  }

 private:
  std::vector<uint64_t> sizes() const {
    std::vector<uint64_t> sizes;
    for (uint64_t bytes = options_.smallest; bytes <= options_.largest; bytes *= 4) sizes.push_back(bytes);
    return sizes;
  }

  std::string name_by(Algorithm algorithm) const {
    if (chooses_) return name_of(algorithm);
    return options_.mpi ? "mpi" : "shared-memory";
  }

  Group& group_by(Algorithm algorithm) {
    auto& group = groups_[algorithm];
    if (!group) group = make_(algorithm);
    return *group;
  }

  // Measures all algorithms of one collective and size.
  void measure(CollectiveKind kind, uint64_t bytes, double budget, std::vector<CommTiming>& all) {
    std::vector<Algorithm> algorithms = {Algorithm::kAuto};
    if (chooses_) algorithms.assign(algorithms_of(kind).begin(), algorithms_of(kind).end());
    const auto ranks = static_cast<size_t>(group_by(algorithms[0]).size());
    const size_t whole = (bytes / sizeof(float) + ranks - 1) / ranks * ranks;
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<int> times;
    const size_t first = all.size();
    for (const Algorithm algorithm : algorithms) {
      Group& group = group_by(algorithm);
      trials.push_back(std::make_unique<Trial>(group, kind, whole));
      auto wrong = static_cast<int64_t>(trials.back()->check());
      all_reduce(group, &wrong, 1, DataType::kInt64, ReduceOp::kSum);
      all.push_back(
          {kind, whole * sizeof(float), algorithm, name_by(algorithm), {}, static_cast<uint64_t>(wrong)});
      const double once = largest_of(group, time_of(group, *trials.back(), 1));
      times.push_back(static_cast<int>(std::clamp(1e-3 / once, 1.0, 100.0)));
    }
    repeat(algorithms, trials, times, budget, {all.data() + first, all.size() - first});
  }

  void repeat(const std::vector<Algorithm>& algorithms, const std::vector<std::unique_ptr<Trial>>& trials,
              const std::vector<int>& times, double budget, std::span<CommTiming> timings) {
    const auto start = SteadyClock::now();
    for (int round = 0; round < kMostRepetitions; ++round) {
      double spent = std::chrono::duration<double>(SteadyClock::now() - start).count();
      // All ranks must agree on the end.
      spent = largest_of(group_by(algorithms[0]), spent);
      if (round >= 3 && spent > budget) break;
      for (size_t i = 0; i < trials.size(); ++i) {
        Group& group = group_by(algorithms[i]);
        timings[i].seconds.push_back(largest_of(group, time_of(group, *trials[i], times[i])));
      }
    }
    for (CommTiming& timing : timings) std::sort(timing.seconds.begin(), timing.seconds.end());
  }

  const GroupMaker make_;
  const CommBench options_;
  bool chooses_ = false;  // true if there is a choice of algorithms
  std::map<Algorithm, std::unique_ptr<Group>> groups_;
};

}  // namespace

double CommTiming::bus_bandwidth(int ranks) const {
  const double part = (ranks - 1.0) / ranks;
  const double share = kind == CollectiveKind::kAllReduce   ? 2 * part
                       : kind == CollectiveKind::kBroadcast ? 1
                                                            : part;
  return share * algorithm_bandwidth();
}

std::vector<CommTiming> bench_comm(const GroupMaker& make, const CommBench& bench) {
  return CollectiveBench(make, bench).run();
}

std::string to_text(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link) {
  std::string out;
  std::optional<CollectiveKind> kind;
  for (const CommTiming& t : timings) {
    if (kind != t.kind) {
      out += fmt::format("{}{}, {}, {}, {}\n{:>10} {:<17} {:>12} {:>12} {:>12} {:>9} {:>9} {:>7}\n",
                         kind ? "\n" : "", name_of(t.kind), ranks_text(ranks), counted(hosts, "host"), link,
                         "bytes", "algorithm", "min us", "median us", "max us", "alg GB/s", "bus GB/s",
                         "errors");
      kind = t.kind;
    }
    out += fmt::format("{:>10} {:<17} {:>12.1f} {:>12.1f} {:>12.1f} {:>9.3f} {:>9.3f} {:>7}\n", t.bytes, t.by,
                       t.seconds.front() * 1e6, t.median() * 1e6, t.seconds.back() * 1e6,
                       t.algorithm_bandwidth() * 1e-9, t.bus_bandwidth(ranks) * 1e-9, t.errors);
  }
  return out;
}

std::string to_json(const std::vector<CommTiming>& timings, int ranks, int hosts, const std::string& link) {
  std::string out;
  for (const CommTiming& t : timings) {
    const nlohmann::ordered_json line = {{"event", "collective_timing"},
                                         {"collective", name_of(t.kind)},
                                         {"bytes", t.bytes},
                                         {"algorithm", t.by},
                                         {"ranks", ranks},
                                         {"hosts", hosts},
                                         {"link", link},
                                         {"repetitions", t.seconds.size()},
                                         {"min_us", t.seconds.front() * 1e6},
                                         {"median_us", t.median() * 1e6},
                                         {"max_us", t.seconds.back() * 1e6},
                                         {"algorithm_gb_per_s", t.algorithm_bandwidth() * 1e-9},
                                         {"bus_gb_per_s", t.bus_bandwidth(ranks) * 1e-9},
                                         {"errors", t.errors}};
    out += line.dump() + "\n";
  }
  return out + end_of_list(timings.size());
}

void tune(Tuning& tuning, const std::vector<CommTiming>& timings, int ranks, int hosts,
          const std::string& link) {
  std::map<std::pair<CollectiveKind, uint64_t>, const CommTiming*> best;
  for (const CommTiming& t : timings) {
    if (t.errors > 0 || t.algorithm == Algorithm::kAuto) continue;
    const CommTiming*& known = best[{t.kind, t.bytes}];
    if (known == nullptr || t.median() < known->median()) known = &t;
  }
  for (const auto& [key, t] : best)
    tuning.set({t->kind, t->bytes, ranks, hosts, link, t->algorithm, t->median() * 1e6});
}

}  // namespace starling
