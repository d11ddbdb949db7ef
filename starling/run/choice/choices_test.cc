#include "starling/run/choice/choices.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <string>

#include "starling/comm/bootstrap.h"
#include "starling/nn/blocks.h"
#include "starling/testing/manual_clock.h"

namespace starling {
namespace {

// Returns the cut of four equal layers, of which the first one seems slow.
std::string cut_of(const RunSpec& spec) {
  ManualClock clock;
  const ModelFactory factory = [&clock] {
    torch::nn::Sequential net;
    Model model{net.ptr(), [net](const at::Tensor& x) mutable { return net->forward(x); }, cross_entropy};
    for (int i = 0; i < 4; ++i) {
      torch::nn::Linear layer(3, 3);
      net->push_back(layer);
      model.blocks.push_back(
          make_block(std::to_string(i), {layer.ptr()}, [&clock, i, layer](const at::Tensor& x) mutable {
            clock.advance(std::chrono::seconds(i == 0 ? 100 : 1));
            return layer(x);
          }));
    }
    return model;
  };
  const auto group = make_single_group();
  const Batch sample{torch::randn({4, 3}), torch::zeros({4}, torch::kLong), torch::arange(4)};
  return make_choices(spec, factory, sample, {}, *group, clock).at("cut");
}

RunSpec two_stages() {
  RunSpec spec;
  spec.train.ranks = 2;
  spec.train.mesh = "stage=2";
  return spec;
}

TEST(Choices, TheCutOfAPipelineFollowsTheTimesOfItsBlocks) {
  EXPECT_EQ(cut_of(two_stages()), "0 1 4");
}

TEST(Choices, ACutThatShapesTheTrainingIsNotMeasuredUnasked) {
  RunSpec spec = two_stages();
  spec.pipeline.activations = "int8";
  EXPECT_EQ(cut_of(spec), "0 2 4");
  spec.train.tune = true;
  EXPECT_EQ(cut_of(spec), "0 1 4");
  spec = two_stages();
  spec.exchange.codec = "int8";
  EXPECT_EQ(cut_of(spec), "0 2 4");
}

}  // namespace
}  // namespace starling
