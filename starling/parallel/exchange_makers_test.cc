#include "starling/parallel/exchange_makers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/spec/extensions.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

using testing::HasSubstr;

Model linear() {
  torch::nn::Linear net(3, 2);
  return {net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); }, cross_entropy};
}

// An optimizer of the program.
class Still final : public OwnOptimizer {
 public:
  void step() override {}
  double lr() const override { return 1; }
  at::Tensor state() override { return at::empty({0}, at::kByte); }
  void load_state(const at::Tensor& /*bytes*/) override {}
};

using Make = std::function<std::unique_ptr<Strategy>(const RunSpec& spec, const ExchangeParts& parts)>;

// Makes the strategy of the table that `spec` names.
std::unique_ptr<Strategy> of_table(const RunSpec& spec, const ExchangeParts& parts) {
  return make_exchange({spec, parts.factory, parts.group, parts.clock, parts.replica});
}

// The same for an exchange that cannot take the gradients of a loop of the program.
std::unique_ptr<Strategy> without_loop(const RunSpec& spec, const ExchangeParts& parts) {
  return make_exchange({spec, parts.factory, parts.group, parts.clock, {}});
}

// Makes an exchange of the program that is one of the table, with other traits. own: a loop of the program
// computes the gradients. Returns the error, or an empty text.
std::string error_with(ExchangeTraits traits, const std::string& name = "gossip", bool own = false,
                       const Make& make = of_table) {
  RunSpec spec, plain;
  plain.exchange.name = name;
  traits.name = spec.exchange.name = "mine";
  FlatReplicaOptions replica;
  replica.own_gradients = own;
  if (own) replica.optimizer = [](const std::vector<NamedTensor>&) { return std::make_shared<Still>(); };
  if (traits.survives_loss) spec.train.on_failure = OnFailure::kContinue;
  Extensions extensions;
  extensions.exchange(traits, [&](const ExchangeParts& parts) { return make(plain, parts); });
  spec.extensions = std::make_shared<const Extensions>(extensions);
  std::string error;
  run_on_memory(1, false, [&](Group& group) {
    const SystemClock clock;
    try {
      make_exchange({spec, linear, group, clock, replica});
    } catch (const ConfigError& e) {
      error = e.what();
    }
  });
  return error;
}

TEST(ExchangeMakers, AnExchangeOfTheProgramHasWhatItsTraitsPromise) {
  EXPECT_EQ(error_with({}), "");
  EXPECT_THAT(error_with({.survives_loss = true}),
              HasSubstr("the program's exchange mine: this run goes on after the loss of a rank, but"));
  EXPECT_EQ(error_with({.survives_loss = true}, "all-reduce"), "");
  EXPECT_EQ(error_with({.own_loop = true}, "gossip", true), "");
  EXPECT_THAT(error_with({.own_loop = true}, "all-reduce", true, without_loop),
              HasSubstr("traits.own_loop is true, but own_loop()"));
  const Make none = [](const RunSpec&, const ExchangeParts&) { return nullptr; };
  EXPECT_THAT(error_with({}, "gossip", false, none), HasSubstr("its function returned no strategy"));
}

}  // namespace
}  // namespace starling
