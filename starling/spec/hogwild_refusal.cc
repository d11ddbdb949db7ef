#include "starling/spec/hogwild_refusal.h"

#include <fmt/format.h>

#include <algorithm>

#include "starling/spec/batch_share.h"
#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

Refusal refused_hogwild(std::string_view key, std::string text) {
  return {{key, "train.threads_mode"}, std::move(text)};
}

std::optional<Refusal> hogwild_exchange_fault(const RunSpec& spec) {
  const ExchangeTraits& traits = exchange_traits(spec);
  // A rank that is alone exchanges nothing. The exchange whose threads can divide a batch is then its
  // trainer.
  const bool alone = spec.train.ranks == 1 && traits.batch_threads;
  if (alone && spec.exchange.codec != "none")
    return refused_hogwild("exchange.codec",
                           "one process sends nothing, so a codec has no effect: leave out --codec");
  if (alone || traits.hogwild) return std::nullopt;
  return Refusal{
      {"exchange.name", "train.threads_mode", "train.ranks"},
      fmt::format("the threads of threads_mode = \"hogwild\" update the parameters of their rank at once, so "
                  "{} gets no gradient of a step: use -n 1 without --exchange, one of the exchanges {}, or "
                  "--threads-mode op",
                  spec.exchange.name, names_of_exchanges(spec, &ExchangeTraits::hogwild))};
}

std::optional<Refusal> hogwild_optimizer_fault(const RunSpec& spec) {
  const OptimizerSpec& optimizer = spec.optimizer;
  constexpr std::string_view kPlain =
      "threads_mode = \"hogwild\" is plain SGD, because threads share the "
      "parameters only and no states of an optimizer: ";
  if (optimizer.name != "sgd")
    return refused_hogwild(
        "optimizer.name",
        fmt::format("{}use --optimizer sgd in place of {}, or --threads-mode op", kPlain, optimizer.name));
  if (optimizer.momentum != 0)
    return refused_hogwild("optimizer.momentum",
                           fmt::format("{}use optimizer.momentum=0, or --threads-mode op", kPlain));
  if (optimizer.ema_decay > 0)
    return refused_hogwild("optimizer.ema_decay",
                           fmt::format("{}leave out optimizer.ema_decay, or use --threads-mode op", kPlain));
  if (spec.train.hogwild == HogwildUpdates::kSparse && optimizer.weight_decay != 0)
    return refused_hogwild(
        "optimizer.weight_decay",
        "a sparse update leaves out the elements whose gradient is 0, so they would not decay: use "
        "optimizer.weight_decay=0, or train.hogwild=dense");
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> hogwild_refusal(const RunSpec& spec) {
  const TrainSpec& train = spec.train;
  if (train.threads_mode != ThreadsMode::kHogwild) return std::nullopt;
  if (auto fault = hogwild_exchange_fault(spec)) return fault;
  if (auto fault = hogwild_optimizer_fault(spec)) return fault;
  if (train.precision == Precision::kBf16)
    return refused_hogwild(
        "train.precision",
        "threads without locks update the parameters with which they compute, which needs fp32 or "
        "fp64: use --precision fp32, or --threads-mode batch");
  if (train.accumulate > 1)
    return refused_hogwild(
        "train.accumulate",
        "each mini-batch of a thread leads to an update of its own: use train.thread_updates in "
        "place of --accumulate");
  if (spec.model.batch_norm == BatchNorm::kSync)
    return refused_hogwild("model.batch_norm",
                           "threads without locks never wait for each other's statistics: use "
                           "model.batch_norm=local, or --threads-mode op");
  if (has_unequal_shares(spec))
    return refused_hogwild("data.share",
                           "ranks whose threads train without locks have equal shares: leave out --share");
  if (train.on_failure == OnFailure::kContinue)
    return refused_hogwild(
        "train.on_failure",
        "an interrupted step of threads without locks cannot be undone: use --on-failure stop and "
        "checkpoints");
  const int64_t replicas = parse_mesh(train.mesh, train.ranks).replica;
  const int64_t samples = train.global_batch / replicas, threads = std::max<int64_t>(1, train.threads);
  if (samples / threads < train.thread_updates) {
    // A program may set numbers whose product exceeds 64 bits.
    const double least = static_cast<double>(threads) * static_cast<double>(train.thread_updates) *
                         static_cast<double>(replicas);
    return Refusal{
        {"train.global_batch", "train.threads", "train.thread_updates"},
        fmt::format(
            "each of {} threads makes {} update{} in a step, but the rank has {} sample{} of it: use a "
            "train.global_batch of {:.0f} or more, or fewer --threads or train.thread_updates",
            threads, train.thread_updates, train.thread_updates == 1 ? "" : "s", samples,
            samples == 1 ? "" : "s", least)};
  }
  return std::nullopt;
}

}  // namespace starling
