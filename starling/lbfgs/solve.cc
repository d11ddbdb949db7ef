#include "starling/lbfgs/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <exception>
#include <optional>

#include "starling/base/error.h"
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

// Executes the instructions of rank 0 until it stops the work. On other ranks than rank 0.
void follow(Group& group, const SampleTable& samples, RankServer& server) {
  for (;;) {
    InstructionHead head;
    broadcast(group, &head, sizeof(head), DataType::kUint8, 0);
    switch (head.code) {
      case InstructionCode::kDescribe:
        server.reply(std::array{std::bit_cast<double>(hash_of(samples))});
        break;
      case InstructionCode::kCombine:
        server.shard().combine(static_cast<VectorId>(head.target),
                               receive_body<VectorTerm>(group, head.count));
        break;
      case InstructionCode::kDots: {
        std::vector<double> parts;
        for (const VectorPair& pair : receive_body<VectorPair>(group, head.count))
          parts.push_back(server.shard().dot(pair));
        server.reply(parts);
        break;
      }
      case InstructionCode::kEvaluate: {
        const VectorShard::Part part = server.evaluate(static_cast<int64_t>(head.target), {});
        server.reply(std::array{part.squares, part.largest_gradient});
        break;
      }
      case InstructionCode::kSave:
        server.save(static_cast<int64_t>(head.target));
        server.reply(std::array{0.0});
        break;
      case InstructionCode::kLoad:
        server.load(static_cast<int64_t>(head.target), static_cast<int>(head.count));
        server.reply(std::array{0.0});
        break;
      case InstructionCode::kStop: {
        server.board().stop();
        server.join_worker();
        const ByteCounts sent = server.bytes();
        // The reply counts itself.
        server.reply(std::array{sent.scalars + 3 * sizeof(double), sent.portions, sent.vectors});
        return;
      }
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

// The loop on rank 0.
void lead(const LbfgsOptions& options, const LbfgsParts& parts, Coordinator& coordinator,
          LbfgsResult& result) {
  const uint64_t hash = hash_of(parts.samples);
  coordinator.compare_samples(hash);
  LbfgsManifest manifest;
  manifest.elements = lbfgs_elements(parts.samples);
  manifest.memory = options.minimize.memory;
  manifest.ridge = options.ridge;
  manifest.samples = hash;
  manifest.ranks = parts.group.size();
  MinimizeState& state = result.state;
  int64_t saved = -1;
  if (!options.checkpoint.empty()) {
    if (const auto found = read_manifest(options.checkpoint)) {
      require_equal(*found, manifest, options.checkpoint);
      state = found->state;
      coordinator.load(state.iterations, found->ranks);
      result.resumed_from = state.iterations;
      saved = found->ranks == manifest.ranks ? state.iterations : -1;
    }
  }
  const auto save = [&] {
    if (options.checkpoint.empty() || saved == state.iterations) return;
    coordinator.save(state.iterations);
    manifest.state = state;
    write_manifest(options.checkpoint, manifest);
    saved = state.iterations;
  };
  const Nanoseconds start = parts.clock.now();
  result.end = minimize(coordinator, options.minimize, state, [&](const MinimizeStep& step) {
    if (parts.on_iteration) parts.on_iteration(step);
    if (options.checkpoint_every > 0 && state.iterations % options.checkpoint_every == 0) save();
    return parts.stop == nullptr || !*parts.stop;
  });
  result.seconds = to_seconds(parts.clock.now() - start);
  save();
}

// Ends the other ranks in order when rank 0 has a fault of its own, so that its message is the only one.
void lead_to_the_end(const LbfgsOptions& options, const LbfgsParts& parts, RankServer& server,
                     LbfgsResult& result) {
  PortionScheduler scheduler({.ranks = parts.group.size(),
                              .per_rank = options.portions_per_rank,
                              .backups = options.backups,
                              .equal = options.equal_portions});
  Coordinator coordinator(options, parts, server, scheduler);
  std::exception_ptr fault;
  try {
    lead(options, parts, coordinator, result);
  } catch (const CommError&) {
    throw;
  } catch (const Error&) {
    fault = std::current_exception();
  }
  result.bytes = coordinator.stop();
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
  const int portions =
      options.equal_portions ? parts.group.size() : parts.group.size() * options.portions_per_rank;
  LbfgsResult result;
  RankServer server(options, parts, portions);
  try {
    if (parts.group.rank() == 0) {
      lead_to_the_end(options, parts, server, result);
    } else {
      follow(parts.group, parts.samples, server);
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
