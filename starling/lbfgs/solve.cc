#include "starling/lbfgs/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <exception>
#include <memory>
#include <optional>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/job/folder_lock.h"
#include "starling/job/job_checkpoint.h"
#include "starling/lbfgs/coordinator.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"
#include "starling/lbfgs/logistic.h"
#include "starling/lbfgs/rank_server.h"

namespace starling {
namespace {

constexpr int kMostPairs = 1000;

// Receives the elements that follow the head of an instruction.
template <typename T>
std::vector<T> receive_body(Group& group, uint32_t count) {
  std::vector<T> body(count);
  if (count > 0) broadcast(group, body.data(), count * sizeof(T), DataType::kUint8, 0);
  return body;
}

bool asked_to_stop(const LbfgsParts& parts) {
  return parts.stop != nullptr && *parts.stop;
}

// Writes this rank's part of a checkpoint. Returns false if that is impossible, and stores the fault.
bool save_part(RankServer& server, int64_t iteration, std::exception_ptr& fault) {
  try {
    server.save(iteration);
    return true;
  } catch (const Error&) {
    fault = std::current_exception();
    return false;
  }
}

// Carries out kStop.
void end_in_order(RankServer& server, uint32_t outcome, LbfgsResult& result) {
  server.board().stop();
  server.join_worker();
  const ByteCounts sent = server.bytes();
  // The reply counts itself.
  server.reply(std::array{sent.scalars + 3 * sizeof(double), sent.portions, sent.vectors});
  result.failed = outcome == kRank0Failed;
  if (!result.failed) result.end = static_cast<MinimizeEnd>(outcome - kFirstEnd);
}

// Executes the instructions of rank 0 until it stops the work. On other ranks than rank 0.
void follow(const LbfgsParts& parts, RankServer& server, LbfgsResult& result) {
  Group& group = parts.group;
  for (;;) {
    InstructionHead head;
    broadcast(group, &head, sizeof(head), DataType::kUint8, 0);
    switch (head.code) {
      case InstructionCode::kDescribe:
        server.reply(std::array{std::bit_cast<double>(hash_of(parts.samples))});
        break;
      case InstructionCode::kCombine:
        server.shard().combine(static_cast<VectorId>(head.target),
                               receive_body<VectorTerm>(group, head.count));
        break;
      case InstructionCode::kDots: {
        std::vector<double> products;
        for (const VectorPair& pair : receive_body<VectorPair>(group, head.count))
          products.push_back(server.shard().dot(pair));
        server.reply(products);
        break;
      }
      case InstructionCode::kEvaluate: {
        const VectorShard::Part part = server.evaluate(static_cast<int64_t>(head.target), {});
        server.reply(std::array{part.squares, part.largest_gradient, asked_to_stop(parts) ? 1.0 : 0.0});
        break;
      }
      case InstructionCode::kSave:
        server.reply(
            std::array{save_part(server, static_cast<int64_t>(head.target), result.unsaved) ? 0.0 : 1.0});
        break;
      case InstructionCode::kLoad:
        server.load(static_cast<int64_t>(head.target), static_cast<int>(head.count));
        server.reply(std::array{0.0});
        break;
      case InstructionCode::kStop:
        return end_in_order(server, head.count, result);
      default:
        throw CommError(
            fmt::format("rank 0 sent instruction {}, which does not exist", static_cast<uint32_t>(head.code)),
            0);
    }
  }
}

// Throws ConfigError if the checkpoint is of another problem.
void require_equal(const LbfgsManifest& found, const LbfgsManifest& own, const std::string& folder) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(
        "--checkpoint",
        fmt::format("{} has a checkpoint of another run: {}; give another folder", folder, what));
  };
  if (found.elements != own.elements) refuse(fmt::format("{} weights, not {}", found.elements, own.elements));
  if (found.samples != own.samples) refuse("other samples");
  if (found.ridge != own.ridge) refuse(fmt::format("a ridge of {}, not {}", found.ridge, own.ridge));
  if (found.memory != own.memory) refuse(fmt::format("{} pairs, not {}", found.memory, own.memory));
}

// Reads and writes the checkpoints of a run, on rank 0. Does nothing without a folder.
class Checkpoints {
 public:
  Checkpoints(const LbfgsOptions& options, const LbfgsParts& parts, Coordinator& coordinator, uint64_t hash,
              const FolderLock* lock)
      : folder_(options.checkpoint), lock_(lock), coordinator_(coordinator) {
    manifest_.elements = lbfgs_elements(parts.samples);
    manifest_.memory = options.minimize.memory;
    manifest_.ridge = options.ridge;
    manifest_.samples = hash;
    manifest_.ranks = parts.group.size();
  }

  // Shows that the folder takes files. Reads the checkpoint, if there is one. Returns its iteration or -1.
  int64_t load(MinimizeState& state) {
    if (folder_.empty()) return -1;
    prepare_checkpoint_folder(folder_);
    remove_temporary_files(folder_, {"lbfgs-", "lbfgs.txt."});
    const auto found = read_manifest(folder_);
    if (!found) return -1;
    require_equal(*found, manifest_, folder_);
    coordinator_.load(found->state.iterations, found->ranks);
    manifest_.state = state = found->state;
    if (found->ranks == manifest_.ranks) saved_ = state.iterations;
    return state.iterations;
  }

  // Writes what has changed since the last call.
  void save(const MinimizeState& state) {
    const MinimizeState& last = manifest_.state;
    if (folder_.empty() || (saved_ == state.iterations && last.evaluations == state.evaluations)) return;
    if (lock_ != nullptr) require_lock_holder(folder_, lock_->holder());
    if (saved_ != state.iterations) coordinator_.save(state.iterations);
    manifest_.state = state;
    write_manifest(folder_, manifest_);
    saved_ = state.iterations;
  }

 private:
  const std::string& folder_;
  const FolderLock* const lock_;  // null without a folder
  Coordinator& coordinator_;
  LbfgsManifest manifest_;
  int64_t saved_ = -1;  // the iteration of the last checkpoint of as many ranks
};

[[noreturn]] void refuse_step(const LbfgsParts& parts, const MinimizeState& state) {
  double largest = 0;
  for (const double x : parts.samples.values) largest = std::max(largest, std::abs(x));
  throw Error(
      ErrorCode::kNumeric,
      fmt::format(
          "no step decreases the objective after iteration {}, although an element of the gradient is "
          "{:.2g}; scale the features (the largest is {:.3g}) to numbers near 1",
          state.iterations, state.largest_gradient, largest));
}

// The loop on rank 0.
void lead(const LbfgsOptions& options, const LbfgsParts& parts, Coordinator& coordinator,
          const FolderLock* lock, LbfgsResult& result) {
  const uint64_t hash = hash_of(parts.samples);
  coordinator.compare_samples(hash);
  MinimizeState& state = result.state;
  Checkpoints checkpoints(options, parts, coordinator, hash, lock);
  result.resumed_from = checkpoints.load(state);
  if (result.resumed_from >= 0 && parts.on_resumed) parts.on_resumed(result.resumed_from);
  const Nanoseconds start = parts.clock.now();
  result.end = minimize(coordinator, options.minimize, state, [&](const MinimizeStep& step) {
    if (parts.on_iteration) parts.on_iteration(step);
    if (options.checkpoint_every > 0 && state.iterations % options.checkpoint_every == 0)
      checkpoints.save(state);
    return !asked_to_stop(parts) && !coordinator.asked_to_stop();
  });
  result.seconds = to_seconds(parts.clock.now() - start);
  if (result.end == MinimizeEnd::kNoStep) refuse_step(parts, state);
  try {
    checkpoints.save(state);
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    if (result.end == MinimizeEnd::kStopped) throw;
    result.unsaved = std::current_exception();  // the weights are good, and the caller may still write them
  }
}

// Ends the other ranks in order when rank 0 has a fault of its own, so that its message is the only one.
void lead_to_the_end(const LbfgsOptions& options, const LbfgsParts& parts, RankServer& server,
                     const FolderLock* lock, LbfgsResult& result) {
  PortionScheduler scheduler(portion_rules(options, parts.group.size(), parts.samples.count()));
  Coordinator coordinator(options, parts, server, scheduler);
  std::exception_ptr fault;
  try {
    lead(options, parts, coordinator, lock, result);
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    fault = std::current_exception();
  }
  try {
    result.bytes = coordinator.stop(fault ? std::nullopt : std::optional(result.end));
  } catch (const std::exception&) {
    if (!fault) throw;  // else it follows from the fault, which is the cause
    server.break_off("rank 0 has failed");
  }
  if (fault) std::rethrow_exception(fault);
  result.instructions = coordinator.instructions();
  result.requests = coordinator.requests();
  result.evaluations = coordinator.evaluations();
  result.portions = scheduler.counts();
}

}  // namespace

int64_t lbfgs_elements(const SampleTable& table) {
  return weights_of(table);
}

PortionRules portion_rules(const LbfgsOptions& options, int ranks, int64_t samples) {
  return {.ranks = ranks,
          .per_rank = options.portions_per_rank,
          .samples = samples,
          .backups = options.backups,
          .equal = options.equal_portions};
}

void check_lbfgs(const LbfgsOptions& options) {
  if (!(options.ridge >= 0) || !std::isfinite(options.ridge))
    throw ConfigError("--ridge", fmt::format("{} is no penalty; use 0 or a positive number", options.ridge));
  if (!(options.minimize.tolerance >= 0) || !std::isfinite(options.minimize.tolerance))
    throw ConfigError("--tolerance", fmt::format("{} is no bound of a gradient; use 0 or a positive number",
                                                 options.minimize.tolerance));
  if (options.minimize.memory < 1 || options.minimize.memory > kMostPairs)
    throw ConfigError("--memory", fmt::format("{} pairs; use 1 to {}", options.minimize.memory, kMostPairs));
  if (options.portions_per_rank < 1 || options.portions_per_rank > 1 << 20)
    throw ConfigError("--portions",
                      fmt::format("{} portions per rank; use at least 1", options.portions_per_rank));
  if (options.minimize.max_iterations < 0)
    throw ConfigError("--iterations",
                      fmt::format("{} iterations; use 0 or more", options.minimize.max_iterations));
  if (options.checkpoint_every < 0)
    throw ConfigError("--checkpoint-every",
                      fmt::format("{} iterations; use 0 or more", options.checkpoint_every));
}

LbfgsResult solve_logistic(const LbfgsOptions& options, const LbfgsParts& parts) {
  check_lbfgs(options);
  if (parts.samples.count() < 1) throw DataError(fmt::format("{}: no samples", parts.samples.name));
  const int portions = count_portions(portion_rules(options, parts.group.size(), parts.samples.count()));
  std::unique_ptr<FolderLock> lock;  // of rank 0, until the end
  if (!options.checkpoint.empty()) lock = lock_together(parts.group, options.checkpoint);
  LbfgsResult result;
  RankServer server(options, parts, portions);
  try {
    if (parts.group.rank() == 0) {
      lead_to_the_end(options, parts, server, lock.get(), result);
    } else {
      follow(parts, server, result);
    }
  } catch (const std::exception& error) {
    server.break_off(error.what());
    throw;
  }
  result.slice = server.shard().slice();
  const std::span<const double> weights = server.shard().vector(kPoint);
  result.weights.assign(weights.begin(), weights.end());
  return result;
}

}  // namespace starling
