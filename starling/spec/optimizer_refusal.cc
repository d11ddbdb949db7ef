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

std::optional<OptimizerRefusal> nesterov_refusal(const RunSpec& spec, const Origins& origins) {
  const OptimizerSpec& optimizer = spec.optimizer;
  if (!optimizer.nesterov) return std::nullopt;
  if (optimizer.name != "sgd") {
    // A file may hold settings of several optimizers.
    const OriginKind kind = kind_of(origins, "optimizer.nesterov");
    if (kind == OriginKind::kFile || kind == OriginKind::kCode) return std::nullopt;
    return OptimizerRefusal{
        {"optimizer.nesterov", "optimizer.name"},
        fmt::format("{} has no momentum of Nesterov: use --optimizer sgd", optimizer.name)};
  }
  if (optimizer.momentum == 0) {
    const bool recipe = kind_of(origins, "optimizer.momentum") == OriginKind::kRecipe;
    return OptimizerRefusal{
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
  return OptimizerRefusal{
      {"optimizer.nesterov", "exchange.codec"},
      fmt::format("--codec {} applies the momentum before it encodes, without Nesterov's step: leave one of "
                  "them out",
                  spec.exchange.codec)};
}

std::optional<OptimizerRefusal> clip_value_refusal(const RunSpec& spec) {
  const ExchangeTraits& traits = exchange_traits(spec);
  const auto refuse = [](std::string_view key, std::string text) {
    return OptimizerRefusal{{"optimizer.clip_value", key}, std::move(text)};
  };
  if (spec.optimizer.clip_value <= 0) return std::nullopt;
  if (!traits.clip_value)
    return refuse("exchange.name",
                  fmt::format("{} does not clip the elements of gradients: use --exchange {}",
                              spec.exchange.name, exchange_table().front().name));
  if (spec.exchange.codec != "none" && traits.momentum_correction)
    return refuse("exchange.codec", fmt::format("{} encodes gradients before their elements can be clipped: "
                                                "leave out --codec or optimizer.clip_value",
                                                spec.exchange.name));
  if (spec.train.threads_mode != ThreadsMode::kOp)
    return refuse("train.threads_mode", "clipping the elements of gradients needs --threads-mode op");
  if (spec.train.on_failure == OnFailure::kContinue)
    return refuse("train.on_failure",
                  "a run that clips the elements of gradients ends if a rank is lost: use --on-failure stop");
  return std::nullopt;
}

}  // namespace

std::optional<OptimizerRefusal> optimizer_refusal(const RunSpec& spec, const Origins& origins) {
  if (auto refusal = nesterov_refusal(spec, origins)) return refusal;
  return clip_value_refusal(spec);
}

}  // namespace starling
