#include "starling/parallel/replica/replica.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "starling/parallel/replica/default_generator.h"

namespace starling {
namespace {

struct Mixed : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(3, 2));
  at::Tensor count = register_buffer("count", torch::full({2}, (int64_t{1} << 40) + 1, torch::kLong));
  at::Tensor flag = register_buffer("flag", torch::ones({2}, torch::kBool));
  at::Tensor mean = register_buffer("mean", torch::zeros({2}));
  at::Tensor index = register_parameter("index", torch::full({2}, int64_t{257}, torch::kLong), false);
};

Model mixed() {
  Model model;
  model.module = std::make_shared<Mixed>();
  return model;
}

TEST(Replica, IsAFunctionOfItsSeedAndLeavesTheGeneratorAlone) {
  seed_default_generator(3);
  const at::Tensor first = at::randn({4});
  const at::Tensor state = default_generator_state();
  const at::Tensor next = at::randn({4});
  set_default_generator_state(state);
  const Replica a = make_replica(mixed, at::kFloat, 7);
  EXPECT_TRUE(at::equal(at::randn({4}), next));
  const Replica b = make_replica(mixed, at::kFloat, 7), c = make_replica(mixed, at::kFloat, 8);
  EXPECT_TRUE(at::equal(a.parameters[0].tensor, b.parameters[0].tensor));
  EXPECT_FALSE(at::equal(a.parameters[0].tensor, c.parameters[0].tensor));
}

TEST(Replica, ConvertsFloatingPointNumbersOnly) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Replica replica = make_replica(mixed, type, 7);
    const at::Tensor index = replica.model.module->named_parameters()["index"];
    EXPECT_EQ(index.scalar_type(), at::kLong);  // at::equal converts one of two types to the other
    EXPECT_TRUE(at::equal(index, torch::full({2}, int64_t{257}, torch::kLong)));
    if (type == at::kBFloat16) continue;  // buffers stay as they are
    EXPECT_EQ(replica.parameters.at(0).tensor.scalar_type(), type);
    ASSERT_EQ(replica.buffers.size(), 3u);
    for (const NamedTensor& buffer : replica.buffers) {
      if (buffer.name == "mean") {
        EXPECT_EQ(buffer.tensor.scalar_type(), type);
      }
      if (buffer.name == "flag") {
        EXPECT_EQ(buffer.tensor.scalar_type(), at::kBool);
      }
      if (buffer.name != "count") continue;
      EXPECT_EQ(buffer.tensor.scalar_type(), at::kLong);
      EXPECT_EQ(buffer.tensor[0].item<int64_t>(), (int64_t{1} << 40) + 1);
    }
  }
}

}  // namespace
}  // namespace starling
