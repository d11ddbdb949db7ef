#include "starling/spec/optimizer_refusal.h"

#include <fmt/format.h>

#include <utility>

#include "starling/spec/codec_table.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

OriginKind kind_of(const Origins& origins, std::string_view key) {
  const auto origin = origins.find(key);
  return origin == origins.end() ? OriginKind::kDefault : origin->second.kind;
}

std::optional<Refusal> nesterov_refusal(const RunSpec& spec, const Origins& origins) {
  const OptimizerSpec& optimizer = spec.optimizer;
  if (!optimizer.nesterov) return std::nullopt;
  if (optimizer.name != "sgd") {
    // A file may hold settings of several optimizers.
    const OriginKind kind = kind_of(origins, "optimizer.nesterov");
    if (kind == OriginKind::kFile || kind == OriginKind::kCode) return std::nullopt;
    return Refusal{{"optimizer.nesterov", "optimizer.name"},
                   fmt::format("{} has no momentum of Nesterov: use --optimizer sgd", optimizer.name)};
  }
  if (optimizer.momentum == 0) {
    const bool recipe = kind_of(origins, "optimizer.momentum") == OriginKind::kRecipe;
    return Refusal{
        {"optimizer.nesterov", "optimizer.momentum"},
        recipe
            ? fmt::format("Nesterov's momentum needs a momentum above 0, but the {} sets it to 0: leave out "
                          "optimizer.nesterov",
                          origins.find("optimizer.momentum")->second.where)
            : std::string(
                  "Nesterov's momentum needs a momentum above 0: leave out optimizer.nesterov, or give --set "
                  "optimizer.momentum=0.9")};
  }
  if (!corrects_momentum(spec)) return std::nullopt;
  return Refusal{
      {"optimizer.nesterov", "exchange.codec"},
      fmt::format("--codec {} applies the momentum before it encodes, without Nesterov's step: leave one of "
                  "them out",
                  spec.exchange.codec)};
}

// Returns why the replicas of the run do not update whole tensors from whole gradients, which `what` needs.
std::optional<Refusal> update_refusal(const RunSpec& spec, std::string_view key, const std::string& what) {
  const auto refuse = [&](std::string_view other, const std::string& remedy) {
    return Refusal{{key, other}, fmt::format("{} {}", what, remedy)};
  };
  const ExchangeTraits& traits = exchange_traits(spec);
  if (!traits.local_update)
    return refuse("exchange.name",
                  fmt::format("does not work with {}{}: use one of {}", spec.exchange.name,
                              traits.servers ? ", whose servers see parts of tensors only" : "",
                              names_of_exchanges(spec, &ExchangeTraits::local_update)));
  // A thread without locks has a whole gradient of its own. hogwild_refusal() refuses lars and lamb.
  if (spec.train.threads_mode != ThreadsMode::kOp && spec.train.threads_mode != ThreadsMode::kHogwild)
    return refuse("train.threads_mode", "needs --threads-mode op");
  if (spec.train.on_failure == OnFailure::kContinue)
    return Refusal{{key, "train.on_failure"},
                   fmt::format("a run with {} ends if a rank is lost: use --on-failure stop", what)};
  return std::nullopt;
}

std::optional<Refusal> clip_value_refusal(const RunSpec& spec) {
  if (spec.optimizer.clip_value <= 0) return std::nullopt;
  if (!exchange_traits(spec).local_update)
    return Refusal{{"optimizer.clip_value", "exchange.name"},
                   fmt::format("{} does not clip the elements of gradients: use --exchange {}",
                               spec.exchange.name, exchange_table().front().name)};
  if (spec.exchange.codec != "none" && exchange_traits(spec).momentum_correction)
    return Refusal{{"optimizer.clip_value", "exchange.codec"},
                   fmt::format("{} encodes gradients before their elements can be clipped: leave out "
                               "--codec or optimizer.clip_value",
                               spec.exchange.name)};
  return update_refusal(spec, "optimizer.clip_value", "clipping the elements of gradients");
}

std::optional<Refusal> tensor_refusal(const RunSpec& spec) {
  const OptimizerSpec& optimizer = spec.optimizer;
  if (!updates_by_tensor(optimizer)) return std::nullopt;
  const bool named = has_rates_of_tensors(optimizer);
  const std::string_view key = named ? "optimizer.name" : "optimizer.exempt_vectors";
  const std::string what = named ? optimizer.name : std::string(key);
  if (spec.train.hybrid != "none")
    return Refusal{{key, "train.hybrid"},
                   fmt::format("{} does not work with --hybrid: leave out one of them", what)};
  // All-reduce leaves out the decay in its own pass over memory.
  if (!named && spec.optimizer.clip_value <= 0 && exchange_traits(spec).buckets) return std::nullopt;
  return update_refusal(spec, key, what);
}

std::optional<Refusal> average_refusal(const RunSpec& spec) {
  constexpr std::string_view kKey = "optimizer.ema_decay";
  if (spec.optimizer.ema_decay <= 0) return std::nullopt;
  if (spec.train.hybrid != "none")
    return Refusal{{kKey, "train.hybrid"},
                   fmt::format("{} does not work with --hybrid: leave out one of them", kKey)};
  if (exchange_traits(spec).weight_average) return std::nullopt;
  return Refusal{
      {kKey, "exchange.name"},
      fmt::format("{} keeps no averaged weights: leave out {}, or use one of these exchanges: {}",
                  spec.exchange.name, kKey, names_of_exchanges(spec, &ExchangeTraits::weight_average))};
}

}  // namespace

std::optional<Refusal> optimizer_refusal(const RunSpec& spec, const Origins& origins) {
  if (auto refusal = nesterov_refusal(spec, origins)) return refusal;
  if (auto refusal = clip_value_refusal(spec)) return refusal;
  if (auto refusal = tensor_refusal(spec)) return refusal;
  return average_refusal(spec);
}

bool has_rates_of_tensors(const OptimizerSpec& spec) {
  return spec.name == "lars" || spec.name == "lamb";
}

bool updates_by_tensor(const OptimizerSpec& spec) {
  return has_rates_of_tensors(spec) || (spec.exempt_vectors && spec.weight_decay != 0);
}

}  // namespace starling
