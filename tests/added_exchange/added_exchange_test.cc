// Shows that a new exchange needs one file (leader.cc) and one row (row.inc). The configuration, its
// validation, the list of strategies and the trainer's maker then know the exchange. This program compiles
// the two files that read the table again, with the added row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/parallel/exchange_makers.h"
#include "starling/spec/config.h"
#include "starling/spec/strategy_table.h"
#include "starling/spec/validate.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

Model line() {
  auto layer = std::make_shared<torch::nn::LinearImpl>(3, 1);
  return {
      layer, [layer = layer.get()](const at::Tensor& x) { return layer->forward(x); },
      [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }};
}

TEST(AddedExchange, TheConfigurationAndTheListKnowIt) {
  Config config;
  apply_set(config, "exchange.name=leader");
  validate(config.spec, config.origins);
  EXPECT_TRUE(in_lockstep(config.spec));
  EXPECT_THAT(std::string(exchange_names()), testing::EndsWith(" leader"));
  const auto rows = strategy_rows();
  EXPECT_EQ(
      std::count_if(rows.begin(), rows.end(), [](const StrategyRow& row) { return row.name == "leader"; }),
      1);
  apply_set(config, "exchange.codec=1bit");
  EXPECT_THROW(validate(config.spec, config.origins), ConfigError);
}

TEST(AddedExchange, TheMakerBuildsIt) {
  const auto found = values_of_processes(2, [](Group& group, Store&) {
    RunSpec spec;
    spec.exchange.name = "leader";
    spec.train.ranks = 2;
    const ModelFactory factory = line;
    FlatReplicaOptions replica;
    replica.master = replica.working = at::kDouble;
    replica.rank = group.rank();
    const SystemClock clock;
    const auto strategy = make_exchange({spec, factory, group, clock, replica});
    for (int64_t step = 1; step <= 3; ++step) {
      strategy->begin_step({step, 0.1, false});
      // Each rank has samples of its own, so that equal weights can only come from the exchange.
      const at::Tensor input = at::full({4, 3}, 0.1 * static_cast<double>(step) + group.rank(), at::kDouble);
      strategy->forward_backward({input, at::ones({4, 1}, at::kDouble)});
      strategy->update();
    }
    std::vector<double> values = {strategy->strategy_stats().at("copies")};
    for (const NamedTensor& p : strategy->evaluated().parameters) {
      const at::Tensor flat = p.tensor.detach().contiguous().view(-1);
      values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
    }
    return values;
  });
  EXPECT_EQ(found[0].front(), 3);
  EXPECT_EQ(found[0].size(), 5u);
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace starling
