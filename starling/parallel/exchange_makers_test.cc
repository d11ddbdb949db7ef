#include "starling/parallel/exchange_makers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/spec/extensions.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

Model linear() {
  torch::nn::Linear net(3, 2);
  return {net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); }, cross_entropy};
}

// Makes an exchange of the program that is gossip, with other traits. Returns the error, or an empty text.
std::string error_with(ExchangeTraits traits) {
  RunSpec spec, plain;
  plain.exchange.name = "gossip";
  traits.name = spec.exchange.name = "mine";
  Extensions extensions;
  extensions.exchange(traits, [&plain](const ExchangeParts& parts) {
    return make_exchange({plain, parts.factory, parts.group, parts.clock, parts.replica});
  });
  spec.extensions = std::make_shared<const Extensions>(extensions);
  std::string error;
  run_on_memory(1, false, [&](Group& group) {
    const SystemClock clock;
    try {
      make_exchange({spec, linear, group, clock, {}});
    } catch (const ConfigError& e) {
      error = e.what();
    }
  });
  return error;
}

TEST(ExchangeMakers, AnExchangeOfTheProgramHasWhatItsTraitsPromise) {
  EXPECT_EQ(error_with({}), "");
  EXPECT_THAT(
      error_with({.survives_loss = true}),
      testing::HasSubstr("the program's exchange mine: traits.survives_loss is true, but recoverable()"));
}

}  // namespace
}  // namespace starling
