#include "starling/parallel/exchange_makers.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "starling/base/error.h"
#include "starling/parallel/zero/sharded_optimizer.h"
#include "starling/parallel/zero/zero.h"
#include "starling/spec/extensions.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"

namespace starling {

#define STARLING_EXCHANGE(maker, ...) std::unique_ptr<Strategy> maker(const ExchangeParts& parts);
#include "starling/spec/exchanges.inc"
#undef STARLING_EXCHANGE

namespace {

using Maker = std::unique_ptr<Strategy> (*)(const ExchangeParts&);

// STARLING_OWN_LOOPS_ONLY leaves out what an own loop in Python cannot use, so that the Python module
// compiles and links less (python/setup.py). The module refuses these exchanges before make_exchange() is
// called.
#ifdef STARLING_OWN_LOOPS_ONLY
constexpr bool kAll = false;
#else
constexpr bool kAll = true;
#endif

constexpr bool in_python(const ExchangeTraits& exchange) {
  return exchange.own_loop && !exchange.servers;
}

// The makers of the exchanges, in the order of exchange_table().
#define STARLING_EXCHANGE(maker, ...)                               \
  [] {                                                              \
    if constexpr (kAll || in_python(ExchangeTraits{__VA_ARGS__})) { \
      return static_cast<Maker>(&maker);                            \
    } else {                                                        \
      return Maker{nullptr};                                        \
    }                                                               \
  }(),
constexpr Maker kMakers[] = {
#include "starling/spec/exchanges.inc"
};
#undef STARLING_EXCHANGE

// Refuses a strategy of the program that lacks what its traits promise.
void check_abilities(const AddedExchange& added, const ExchangeParts& parts, Strategy* made) {
  const auto fail = [&](std::string_view text) {
    throw ConfigError("exchange.name", fmt::format("the program's exchange {}: {}", added.traits.name, text));
  };
  if (made == nullptr) fail("its function returned no strategy");
  if ((added.traits.servers || goes_on_after_loss(parts.spec)) && made->recoverable() == nullptr)
    fail(
        "this run goes on after the loss of a rank, but recoverable() of its strategy returns null: "
        "implement it, or leave out traits.survives_loss");
  if (parts.replica.own_gradients && made->own_loop() == nullptr)
    fail(
        "traits.own_loop is true, but own_loop() of its strategy returns null: implement it, or leave out "
        "the trait");
}

}  // namespace

std::unique_ptr<Strategy> make_exchange(const ExchangeParts& parts) {
  if (parts.spec.train.shard != Shard::kNone) {
    if (parts.replica.optimizer) return make_sharded_optimizer(parts);
    if constexpr (kAll) return make_zero(parts);
  }
  const std::string& name = parts.spec.exchange.name;
  if (const AddedExchange* added = find_added_exchange(parts.spec.extensions.get(), name)) {
    std::unique_ptr<Strategy> made = added->make(parts);
    check_abilities(*added, parts, made.get());
    return made;
  }
  const ExchangeTraits& exchange = exchange_traits(parts.spec);
  return kMakers[&exchange - exchange_table().data()](parts);
}

}  // namespace starling
