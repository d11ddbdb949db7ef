#include "starling/spec/warm_up.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "starling/spec/codec_table.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

// The first share that a warm-up of a codec sends (codec/dgc.cc). A larger keep has no warm-up.
constexpr double kFirstShare = 0.25;

bool from_recipe(const Origins& origins, std::string_view key) {
  const auto origin = origins.find(key);
  return origin != origins.end() && origin->second.kind == OriginKind::kRecipe;
}

// Returns how many messages the codec encodes in the steps of the run.
int64_t messages_of(const RunSpec& spec) {
  const int64_t steps = spec.train.steps, every = spec.exchange.every;
  const ExchangeTraits& exchange = exchange_traits(spec);
  if (exchange.lockstep != Lockstep::kRounds) return steps;
  const int64_t first = exchange.reads("local_from") ? std::min(spec.exchange.local_from, steps) : 0;
  return first + steps / every - first / every;
}

std::optional<std::string> codec_warning(const RunSpec& spec) {
  const std::string& word = spec.exchange.codec;
  const CodecTraits* codec = find_codec(first_codec(word), spec);
  if (codec == nullptr || codec->warmup == 0) return std::nullopt;
  const double warm_up = setting_of(word, "warmup", codec->warmup),
               keep = setting_of(word, "keep", codec->keep);
  const int64_t messages = messages_of(spec);
  if (warm_up < static_cast<double>(messages) || warm_up == 0 || keep >= kFirstShare) return std::nullopt;
  return fmt::format(
      "the warm-up of --codec {} has {} messages, and train.steps = {} sends {}, so the run never sends as "
      "few "
      "values as keep = {} says. Set warmup below {}",
      codec->name, warm_up, spec.train.steps, messages, keep, std::max<int64_t>(messages, 1));
}

}  // namespace

std::vector<std::string> warm_up_warnings(const RunSpec& spec, const Origins& origins) {
  std::vector<std::string> warnings;
  if (spec.train.steps == 0) return warnings;
  const int64_t warm_up = spec.schedule.warmup_steps;
  if (warm_up > spec.train.steps && !from_recipe(origins, "schedule.warmup_steps")) {
    warnings.push_back(fmt::format(
        "schedule.warmup_steps = {} is longer than train.steps = {}, so the learning rate never reaches "
        "optimizer.lr",
        warm_up, spec.train.steps));
  }
  if (const auto warning = codec_warning(spec)) warnings.push_back(*warning);
  return warnings;
}

}  // namespace starling
