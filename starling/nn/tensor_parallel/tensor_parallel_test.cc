// Tensor parallelism on real processes, fp64: the divided model computes the loss and the gradients of the whole one, moves what
// the formula says, and refuses what cannot be divided.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/tensor_parallel/all_samples.h"
#include "starling/nn/tensor_parallel/divide.h"
#include "starling/nn/tensor_parallel/regions.h"
#include "starling/nn/tensor_parallel/vocabulary.h"
#include "starling/torch_testing/group_processes.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 4;

// Runs `body` on `size` processes; the numbers of all ranks, the largest of each name.
Numbers on_ranks(int size, const std::function<Numbers(TensorGroup&)>& body) {
  return largest_of(numbers_of_processes(size, [&](Group& group, Store&) {
    const SystemClock clock;
    TensorGroup tensor_group(group, clock);
    return body(tensor_group);
  }));
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const double norm = b.norm().item<double>();
  const double apart = (a - b).norm().item<double>();
  return apart == 0 ? 0 : apart / norm;
}

struct Case {
  std::string name;
  ModelFactory factory;
  at::Tensor input, target;
};

Case gpt_case(int64_t heads = 4) {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = heads;
  spec.tokens = 6;
  torch::manual_seed(5);
  return {"gpt", zoo_model(spec, {{6}, 11, true}), torch::randint(11, {kBatch, 6}),
          torch::randint(11, {kBatch, 6})};
}

Case mlp_case(std::vector<int64_t> widths) {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = std::move(widths);
  const int64_t in = spec.widths.front(), out = spec.widths.back();
  torch::manual_seed(6);
  return {"mlp" + std::to_string(spec.widths.size()), zoo_model(spec, {{in}, out, false}),
          torch::randn({kBatch, in}, torch::kDouble), torch::randint(out, {kBatch})};
}

Case lenet_case() {
  ModelSpec spec;
  spec.name = "lenet5";
  torch::manual_seed(7);
  return {"lenet5", zoo_model(spec, {{1, 16, 16}, 10, false}),
          torch::randn({kBatch, 1, 16, 16}, torch::kDouble), torch::randint(10, {kBatch})};
}

// Like AlexNet, but small: convolutions, pooling, fully connected layers; a user's model, of which nothing is said.
class SmallNet : public torch::nn::Module {
 public:
  SmallNet() {
    register_module("layers", layers_);
    layers_->add(std::make_shared<Conv2d>(torch::nn::Conv2dOptions(3, 7, 3).padding(1).bias(false)));
    layers_->relu();
    layers_->max_pool(2, 2);
    layers_->add(std::make_shared<Conv2d>(torch::nn::Conv2dOptions(7, 9, 3)));
    layers_->relu();
    layers_->add_step([](const at::Tensor& x) { return x.flatten(1); });
    layers_->add(std::make_shared<Linear>(9 * 2 * 2, 13));
    layers_->relu();
    layers_->add(std::make_shared<Linear>(13, 5));
    scale_ = register_parameter("scale", torch::ones({5}));
  }
  at::Tensor forward(const at::Tensor& x) { return layers_->forward(x) * scale_; }

 private:
  std::shared_ptr<LayerChain> layers_ = std::make_shared<LayerChain>();
  at::Tensor scale_;
};

Case small_net_case() {
  torch::manual_seed(8);
  const auto factory = [] {
    const auto net = std::make_shared<SmallNet>();
    return Model{net, [net = net.get()](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
  };
  return {"user", factory, torch::randn({kBatch, 3, 8, 8}, torch::kDouble), torch::randint(5, {kBatch})};
}

Model made(const ModelFactory& factory) {
  torch::manual_seed(1);
  Model model = factory();
  model.module->to(torch::kDouble);
  model.module->train();
  return model;
}

// Loss and gradients of the divided model against the whole one's; whether whole parameters have equal gradients on all ranks.
Numbers compare(const Case& c, TensorGroup& group) {
  const Model whole = made(c.factory);
  Model model = made(c.factory);
  const Division division = divide_model(model, group);
  const at::Tensor expected = whole.loss(whole.forward(c.input), c.target);
  expected.backward();
  const at::Tensor loss = model.loss(model.forward(c.input), c.target);
  loss.backward();
  Numbers result;
  result[c.name + ":loss"] = difference(loss, expected);
  const auto gradients = whole.module->named_parameters();
  for (const auto& p : model.module->named_parameters()) {
    at::Tensor reference = gradients[p.key()].grad();
    const auto slice = division.slices.find(p.key());
    const bool divided = slice != division.slices.end();
    if (divided) {
      reference = slice->second.cut(reference, group.size(), group.rank());
      EXPECT_EQ(p.value().sizes(), slice->second.part_sizes(group.size(), group.rank()));
    } else {
      const at::Tensor most = group.maximum(p.value().grad(), "test");
      result[c.name + ":unequal"] += most.equal(p.value().grad()) ? 0 : 1;
    }
    double& worst = result[c.name + ":gradients"];
    worst = std::max(worst, difference(p.value().grad(), reference));
  }
  result[c.name + ":divided"] = static_cast<double>(division.slices.size());
  return result;
}

void expect_equal(const Numbers& numbers, const std::string& name, double divided) {
  ASSERT_EQ(numbers.count(name + ":divided"), 1u) << name;
  EXPECT_EQ(numbers.at(name + ":divided"), divided);
  EXPECT_LE(numbers.at(name + ":loss"), 1e-12) << name;
  EXPECT_LE(numbers.at(name + ":gradients"), 1e-11) << name;
  if (numbers.count(name + ":unequal") > 0) {
    EXPECT_EQ(numbers.at(name + ":unequal"), 0) << name;
  }
}

TEST(TensorSlice, JoinsWhatItCut) {
  TensorSlice slice;
  slice.dim = 1;
  slice.sections = 3;
  slice.sizes = {2, 21};
  const at::Tensor whole = torch::arange(42).view({2, 21});
  std::vector<at::Tensor> parts;
  for (int r = 0; r < 4; ++r) {
    parts.push_back(slice.cut(whole, 4, r));
    EXPECT_EQ(parts.back().sizes(), slice.part_sizes(4, r));
  }
  EXPECT_TRUE(slice.join(parts).equal(whole));
  // Rank 1 of 4 has entries 1 and 2 of each of the three sections of 7.
  EXPECT_TRUE(parts[1][0].equal(torch::tensor({1, 2, 8, 9, 15, 16})));
}

TEST(TensorParallel, ComputesTheLossAndGradientsOfTheWholeModel) {
  for (const int ranks : {2, 4}) {
    const Numbers all = on_ranks(ranks, [](TensorGroup& group) {
      Numbers result;
      for (const Case& c : {gpt_case(), mlp_case({12, 9, 7, 6}), lenet_case(), small_net_case()})
        result.merge(compare(c, group));
      return result;
    });
    expect_equal(all, "gpt", 1 + 2 * 6);  // row-parallel biases stay whole
    expect_equal(all, "mlp4", 5);         // columns, rows, gathered
    expect_equal(all, "lenet5", 2 * 2 + 5);
    expect_equal(all, "user", 1 + 2 + 2 * 2);
  }
}

TEST(TensorParallel, DividesUnevenly) {
  const Numbers all = on_ranks(3, [](TensorGroup& group) {
    Numbers result = compare(gpt_case(3), group);
    result.merge(compare(mlp_case({5, 8, 4}), group));
    return result;
  });
  expect_equal(all, "gpt", 13);
  expect_equal(all, "mlp3", 3);
}

TEST(TensorParallel, TransformerLayersMoveWhatTheFormulaSays) {
  for (const int ranks : {2, 4}) {
    const Numbers all = on_ranks(ranks, [](TensorGroup& group) {
      const Case c = gpt_case();
      Model model = made(c.factory);
      const Division division = divide_model(model, group);
      group.reset_traffic();
      model.loss(model.forward(c.input), c.target).backward();
      double elements = 0, calls = 0;
      for (const auto& [layer, traffic] : group.traffic()) {
        if (layer.find(".h.") == std::string::npos) continue;
        elements += traffic.elements;
        calls += static_cast<double>(traffic.calls);
      }
      const auto layers = static_cast<double>(division.transformer_layers);
      return Numbers{{"elements", elements / layers},
                     {"calls", calls / layers},
                     {"width", static_cast<double>(division.width)}};
    });
    const double bsh = kBatch * 6 * 24, t = ranks;
    EXPECT_EQ(all.at("width"), 24);
    EXPECT_EQ(all.at("calls"), 4);
    EXPECT_EQ(all.at("elements"), 8 * bsh * (t - 1) / t);
  }
}

TEST(TensorParallel, LossOverADividedVocabularyIsCrossEntropy) {
  const Numbers all = on_ranks(3, [](TensorGroup& group) {
    torch::manual_seed(3);
    const at::Tensor whole = torch::randn({5, 2, 10}, torch::kDouble).mul_(30).requires_grad_();
    const at::Tensor target = torch::randint(10, {5, 2});
    const IndexRange part = part_of_range(10, group.size(), group.rank());
    const at::Tensor own = whole.detach().narrow(2, part.begin, part.count()).clone().requires_grad_();
    const at::Tensor expected = cross_entropy(whole, target);
    (3 * expected).backward();
    const at::Tensor loss = vocabulary_cross_entropy(own, target, part.begin, group, "loss");
    (3 * loss).backward();
    return Numbers{{"loss", difference(loss, expected)},
                   {"gradient", difference(own.grad(), whole.grad().narrow(2, part.begin, part.count()))}};
  });
  EXPECT_LE(all.at("loss"), 1e-14);
  EXPECT_LE(all.at("gradient"), 1e-13);
}

// Each rank's samples go through a layer whose outputs are divided, and come back with all outputs.
TEST(TensorParallel, SamplesGoToTheLayerAndComeBack) {
  const Numbers all = on_ranks(3, [](TensorGroup& group) {
    torch::manual_seed(4);
    const at::Tensor samples = torch::randn({6, 5, 4}, torch::kDouble);
    const at::Tensor weight = torch::randn({4, 7}, torch::kDouble).requires_grad_();
    const at::Tensor scale = torch::randn({6, 5, 7}, torch::kDouble);
    const at::Tensor whole_in = samples.clone().requires_grad_();
    const at::Tensor whole = whole_in.matmul(weight);
    (whole.tanh() * scale).sum().backward();

    const IndexRange part = part_of_range(7, group.size(), group.rank());
    const int64_t first = 2 * group.rank();
    const at::Tensor own = weight.detach().narrow(1, part.begin, part.count()).clone().requires_grad_();
    const at::Tensor in = samples.narrow(0, first, 2).clone().requires_grad_();
    const at::Tensor out = return_samples(group, 7, "layer")(gather_samples(group, "layer")(in).matmul(own));
    (out.tanh() * scale.narrow(0, first, 2)).sum().backward();
    return Numbers{
        {"output", difference(out, whole.narrow(0, first, 2))},
        {"input_gradient", difference(in.grad(), whole_in.grad().narrow(0, first, 2))},
        {"weight_gradient", difference(own.grad(), weight.grad().narrow(1, part.begin, part.count()))}};
  });
  for (const auto& [name, value] : all) EXPECT_LE(value, 1e-13) << name;
  EXPECT_EQ(all.size(), 3u);
}

// Gradients of data-parallel layers are those of the own samples' mean loss, those of model-parallel ones sums over the ranks.
TEST(AllSamples, ModelParallelLayersSeeTheSamplesOfAllRanks) {
  const Numbers all = on_ranks(2, [](TensorGroup& group) {
    const Case c = lenet_case();
    const Model whole = made(c.factory);
    Model model = made(c.factory);
    const TensorSlices slices = divide_for_all_samples(model, group, {"fc1", "fc3"});
    whole.loss(whole.forward(c.input), c.target).backward();
    const int64_t n = kBatch / 2;
    const at::Tensor own = c.input.narrow(0, group.rank() * n, n);
    model.loss(model.forward(own), c.target.narrow(0, group.rank() * n, n)).backward();
    Numbers result;
    const auto gradients = whole.module->named_parameters();
    for (const auto& p : model.module->named_parameters()) {
      at::Tensor reference = gradients[p.key()].grad(), sum = p.value().grad();
      const auto slice = slices.find(p.key());
      if (slice != slices.end()) {
        reference = slice->second.cut(reference, 2, group.rank());
      } else {
        sum = group.sum(sum, "data");
      }
      result[p.key()] = difference(sum / 2, reference);
    }
    return result;
  });
  EXPECT_EQ(all.size(), 10u);
  for (const auto& [name, value] : all) EXPECT_LE(value, 1e-12) << name;
}

TEST(AllSamples, MoveWhatTheFormulaSays) {
  const Numbers all = on_ranks(2, [](TensorGroup& group) {
    Model model = made(mlp_case({12, 10, 8, 6}).factory);
    divide_for_all_samples(model, group, {"fc2"});
    const at::Tensor x = torch::randn({kBatch, 12}, torch::kDouble);
    model.loss(model.forward(x), torch::zeros({kBatch}, torch::kLong)).backward();
    return Numbers{{"elements", group.traffic().at("fc2").elements},
                   {"calls", static_cast<double>(group.traffic().at("fc2").calls)}};
  });
  EXPECT_EQ(all.at("calls"), 4);
  EXPECT_EQ(all.at("elements"), 2 * kBatch * 10 * 1 + 2 * kBatch * 8 / 2);
}

TEST(AllSamples, BytesDecideWhichLayersAreModelParallel) {
  ModelSpec spec;
  spec.name = "lenet5";
  const ModelShape shape{{1, 28, 28}, 10, false};
  const auto layers = hybrid_layers(zoo_model(spec, shape), shape, 64);
  std::vector<std::string> chosen;
  for (const HybridLayer& layer : layers) {
    if (layer.model_parallel()) chosen.push_back(layer.name);
  }
  // fc1: 400 x 64 inputs against 48,000 weights; fc2: 7,680 against 10,080; fc3: 5,376 against 840.
  EXPECT_EQ(layers.size(), 3u);
  EXPECT_THAT(chosen, ::testing::ElementsAre("fc1", "fc2"));
}

TEST(AllSamples, RefusesNamesThatAreNoFullyConnectedLayers) {
  const auto refused = [](const std::vector<std::string>& layers) -> std::string {
    const auto alone = make_single_group();
    const SystemClock clock;
    TensorGroup group(*alone, clock);
    Model model = made(lenet_case().factory);
    try {
      divide_for_all_samples(model, group, layers);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(refused({"fc12"}), ::testing::AllOf(HasSubstr("fc12"), HasSubstr("did you mean \"fc1\"?"),
                                                  HasSubstr("fc1 fc2 fc3")));
  EXPECT_THAT(refused({"conv1"}), HasSubstr("no fully connected layer"));
  EXPECT_THAT(refused({"fc2", "fc2"}), HasSubstr("twice"));
}

// What dividing `c` among `size` ranks throws. Nothing is exchanged before the check, so one process is enough.
std::string refusal(const Case& c, int size) {
  class Ranks final : public Group {
   public:
    explicit Ranks(int size) : alone_(make_single_group()), size_(size) {}
    int rank() const override { return 0; }
    int size() const override { return size_; }
    int local_rank() const override { return 0; }
    std::vector<int> local_ranks() const override { return alone_->local_ranks(); }
    std::string host_of(int rank) const override { return alone_->host_of(rank); }
    TrafficCount traffic() const override { return {}; }
    std::shared_ptr<Window> allocate_window(size_t bytes) override { return alone_->allocate_window(bytes); }
    LocalSync* local_sync() override { return alone_->local_sync(); }
    void barrier() override {}
    void broadcast(void*, size_t, DataType, int) override {}
    void all_reduce(void*, size_t, DataType, ReduceOp) override {}
    void reduce_scatter(const void*, void*, size_t, DataType, ReduceOp) override {}
    void all_gather(const void*, void*, size_t, DataType) override {}
    void all_to_all(const void*, std::span<const size_t>, void*, std::span<const size_t>, DataType) override {
    }
    void send(const void*, size_t, int, uint32_t) override {}
    void recv(void*, size_t, int, uint32_t) override {}
    bool try_recv(void*, size_t, int, uint32_t) override { return false; }
    void abort(const std::string&) override {}

   private:
    std::unique_ptr<Group> alone_;
    int size_;
  };
  Ranks ranks(size);
  const SystemClock clock;
  TensorGroup group(ranks, clock);
  Model model = made(c.factory);
  try {
    divide_model(model, group);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(TensorParallel, RefusesWhatCannotBeDivided) {
  EXPECT_THAT(refusal(gpt_case(3), 2),
              ::testing::AllOf(HasSubstr("model.heads"), HasSubstr("3 heads"), HasSubstr("model.heads = 4")));
  EXPECT_THAT(refusal(mlp_case({12, 9, 3}), 10),
              ::testing::AllOf(HasSubstr("fc1.weight"), HasSubstr("--mesh tensor=9")));
  const auto plain = [] {
    const auto net = std::make_shared<torch::nn::LinearImpl>(4, 2);
    return Model{net, [net = net.get()](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
  };
  EXPECT_THAT(refusal({"plain", plain, {}, {}}, 2), HasSubstr("starling::Linear"));
  const auto grouped = [] {
    const auto net = std::make_shared<Conv2d>(torch::nn::Conv2dOptions(4, 4, 3).groups(2));
    return Model{net, [net = net.get()](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
  };
  EXPECT_THAT(refusal({"grouped", grouped, {}, {}}, 2), HasSubstr("2 groups"));
}

}  // namespace
}  // namespace starling
