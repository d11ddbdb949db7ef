#include "starling/commands/shared_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "starling/base/error.h"
#include "starling/commands/retraining.h"
#include "starling/data/tensor_source.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

Replica replica_of(const ModelSpec& spec, const ModelShape& shape) {
  return make_replica(zoo_model(spec, shape), at::kFloat, 1);
}

Replica small_mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {16, 12, 4};
  return replica_of(spec, {{1, 4, 4}, 4, false});
}

std::shared_ptr<const Source> small_data() {
  torch::manual_seed(2);
  const at::Tensor input = torch::randn({64, 1, 4, 4});
  return tensor_source(input, input.flatten(1).narrow(1, 0, 4).argmax(1));
}

// Runs forward and backward.
void backward(Replica& replica) {
  batch_loss(replica.model, small_data()->read({0, 1, 2, 3, 4, 5, 6, 7}, 0), at::kFloat, false)
      .mean()
      .backward();
}

std::vector<float> values_in(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view(-1);
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

TEST(SharedWeights, AreThoseOfLinearAndConvolutionalLayers) {
  ModelSpec spec;
  spec.name = "lenet5";
  const Replica replica = replica_of(spec, {{1, 28, 28}, 10, false});
  std::map<std::string, std::pair<bool, uint64_t>> found;
  for (const SharedWeights& layer : shared_weights_of(replica, "lenet5"))
    found[layer.layer()] = {layer.convolution(), layer.weights()};
  EXPECT_EQ(found, (std::map<std::string, std::pair<bool, uint64_t>>{{"conv1", {true, 150}},
                                                                     {"conv2", {true, 2400}},
                                                                     {"fc1", {false, 48000}},
                                                                     {"fc2", {false, 10080}},
                                                                     {"fc3", {false, 840}}}));
}

TEST(SharedWeights, EmbeddingsAreRefusedByName) {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 1;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 8;
  const Replica replica = replica_of(spec, {{8}, 30, true});
  const std::string refusal = error_of<ConfigError>([&] { shared_weights_of(replica, "gpt"); });
  EXPECT_THAT(refusal, HasSubstr("gpt cannot be compressed"));
  EXPECT_THAT(refusal, HasSubstr("transformer.wte.weight [30, 16], transformer.wpe.weight [8, 16]"));
}

TEST(SharedWeights, PruningKeepsTheLargestAndTheirGradients) {
  Replica replica = small_mlp();
  std::vector<SharedWeights> layers = shared_weights_of(replica, "mlp");
  SharedWeights& fc1 = layers.front();
  const std::vector<float> before = values_in(fc1.weight());
  fc1.prune(0.25);
  EXPECT_EQ(fc1.kept(), 48);
  std::vector<float> magnitudes;
  for (const float v : before) magnitudes.push_back(std::abs(v));
  std::sort(magnitudes.begin(), magnitudes.end());
  const float smallest = magnitudes[magnitudes.size() - 48];
  backward(replica);
  const std::vector<float> after = values_in(fc1.weight()), gradient = values_in(fc1.masked_gradient()),
                           whole = values_in(fc1.weight().grad());
  for (size_t i = 0; i < before.size(); ++i) {
    const bool kept = std::abs(before[i]) >= smallest;
    EXPECT_EQ(after[i], kept ? before[i] : 0);
    EXPECT_EQ(gradient[i], kept ? whole[i] : 0);
  }
}

TEST(SharedWeights, TheGradientOfACentroidIsTheSumOverItsWeights) {
  Replica replica = small_mlp();
  std::vector<SharedWeights> layers = shared_weights_of(replica, "mlp");
  SharedWeights& fc1 = layers.front();
  fc1.prune(0.5);
  fc1.cluster(3);
  backward(replica);
  const std::vector<float> weights = values_in(fc1.weight()), gradients = values_in(fc1.weight().grad());
  const std::vector<float> centroids = values_in(fc1.centroids()), sums = values_in(fc1.centroid_gradient());
  ASSERT_LE(centroids.size(), 8);
  ASSERT_GT(centroids.size(), 4);
  for (size_t c = 0; c < centroids.size(); ++c) {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == centroids[c]) sum += gradients[i];
    }
    EXPECT_NEAR(sums[c], sum, 1e-6);
  }
}

TEST(SharedWeights, FewWeightsHaveFewClusters) {
  Replica replica = small_mlp();
  std::vector<SharedWeights> layers = shared_weights_of(replica, "mlp");
  layers.back().prune(0.25);  // 12 of 48 weights
  layers.back().cluster(8);
  EXPECT_LE(layers.back().centroids().numel(), 3);
}

TEST(SharedWeights, TheFileHoldsTheWeights) {
  Replica replica = small_mlp();
  for (SharedWeights& layer : shared_weights_of(replica, "mlp")) {
    layer.prune(0.3);
    layer.cluster(5);
    for (const bool half : {false, true}) {
      const CompressedTensor tensor = layer.compressed(half);
      const std::vector<std::byte> elements = decoded(tensor);
      const at::Tensor expected = layer.weight().detach().to(half ? at::kHalf : at::kFloat).contiguous();
      ASSERT_EQ(elements.size(), expected.nbytes());
      EXPECT_EQ(std::memcmp(elements.data(), expected.const_data_ptr(), elements.size()), 0);
    }
  }
}

TEST(SharedWeights, RetrainingKeepsThePrunedWeightsAt0AndLowersTheLoss) {
  Replica replica = small_mlp();
  std::vector<SharedWeights> layers = shared_weights_of(replica, "mlp");
  Retraining retraining{.epochs = 20, .lr = 0.01, .batch = 16, .seed = 3};
  for (SharedWeights& layer : layers) {
    layer.prune(0.5);
    retraining.tensors.push_back({layer.weight(), [&layer] { return layer.masked_gradient(); }});
  }
  retraining.after_update = [&] {
    for (SharedWeights& layer : layers) layer.apply_mask();
  };
  const auto loss = [&] {
    const at::NoGradGuard no_grad;
    return batch_loss(replica.model, small_data()->read({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 0), at::kFloat, false)
        .mean()
        .item<double>();
  };
  const std::vector<float> pruned = values_in(layers.front().weight());
  const double before = loss();
  retrain(replica, small_data(), retraining);
  EXPECT_LT(loss(), 0.8 * before);
  const std::vector<float> trained = values_in(layers.front().weight());
  for (size_t i = 0; i < pruned.size(); ++i) EXPECT_EQ(trained[i] == 0, pruned[i] == 0);
}

TEST(SharedWeights, ValuesThatFp16CannotHoldAreRefused) {
  EXPECT_NO_THROW(require_half("b", at::full({2}, 65504.0f)));
  EXPECT_NO_THROW(require_half("n", at::full({2}, 1'000'000, at::kLong)));  // counters stay integers
  const std::string message = error_of<ConfigError>([] { require_half("b", at::full({2}, -1e5f)); });
  EXPECT_THAT(message, HasSubstr("b has values that fp16 cannot hold"));
}

}  // namespace
}  // namespace starling
