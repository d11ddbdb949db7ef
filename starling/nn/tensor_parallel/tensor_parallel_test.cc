// Tests tensor parallelism on real processes in fp64. The sharded model computes the loss and the gradients
// of the whole model, moves what the formula says, and refuses what cannot be sharded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/nn/layer_chain.h"
#include "starling/nn/layers/conv.h"
#include "starling/nn/tensor_parallel/regions.h"
#include "starling/nn/tensor_parallel/shard_for_all_samples.h"
#include "starling/nn/tensor_parallel/shard_model.h"
#include "starling/nn/tensor_parallel/shard_vocabulary.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 4;

// Runs `body` on `size` processes. Returns the maximum over the ranks of each number.
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

Case llama_case(const std::string& name, int64_t heads, int64_t kv_heads, bool tied) {
  ModelSpec spec;
  spec.name = "llama";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.hidden = 37;  // uneven parts
  spec.tied = tied;
  spec.tokens = 6;
  torch::manual_seed(9);
  return {name, zoo_model(spec, {{6}, 11, true}), torch::randint(11, {kBatch, 6}),
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

// A small network like AlexNet: convolutions, pooling and fully connected layers. It stands for a user's
// model without TensorShardable.
class SmallNet : public torch::nn::Module {
 public:
  SmallNet() {
    register_module("layers", layers_);
    layers_->add(std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(3, 7, 3).padding(1).bias(false)));
    layers_->relu();
    layers_->max_pool(2, 2);
    layers_->add(std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(7, 9, 3)));
    layers_->relu();
    layers_->add_step([](const at::Tensor& x) { return x.flatten(1); });
    layers_->add(std::make_shared<LinearImpl>(9 * 2 * 2, 13));
    layers_->relu();
    layers_->add(std::make_shared<LinearImpl>(13, 5));
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

// Compares loss and gradients of the sharded model with those of the whole model. Also checks that whole
// parameters have equal gradients on all ranks.
Numbers compare(const Case& c, TensorGroup& group) {
  const Model whole = made(c.factory);
  Model model = made(c.factory);
  const ModelSharding sharding = shard_model(model, group);
  const at::Tensor expected = whole.loss(whole.forward(c.input), c.target);
  expected.backward();
  const at::Tensor loss = model.loss(model.forward(c.input), c.target);
  loss.backward();
  Numbers result;
  result[c.name + ":loss"] = difference(loss, expected);
  const auto gradients = whole.module->named_parameters();
  for (const auto& p : model.module->named_parameters()) {
    at::Tensor reference = gradients[p.key()].grad();
    const auto slice = sharding.slices.find(p.key());
    const bool sharded = slice != sharding.slices.end();
    if (sharded) {
      reference = slice->second.cut(reference, group.size(), group.rank());
      EXPECT_EQ(p.value().sizes(), slice->second.part_sizes(group.size(), group.rank()));
    } else {
      const at::Tensor most = group.maximum(p.value().grad(), "test");
      result[c.name + ":unequal"] += most.equal(p.value().grad()) ? 0 : 1;
    }
    double& worst = result[c.name + ":gradients"];
    worst = std::max(worst, difference(p.value().grad(), reference));
  }
  result[c.name + ":sharded"] = static_cast<double>(sharding.slices.size());
  return result;
}

void expect_equal(const Numbers& numbers, const std::string& name, double sharded) {
  ASSERT_EQ(numbers.count(name + ":sharded"), 1u) << name;
  EXPECT_EQ(numbers.at(name + ":sharded"), sharded);
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
    expect_equal(all, "gpt", 1 + 2 * 6);  // biases of layers by rows stay whole
    expect_equal(all, "mlp4", 5);         // columns, rows, gathered
    expect_equal(all, "lenet5", 2 * 2 + 5);
    expect_equal(all, "user", 1 + 2 + 2 * 2);
  }
}

// Each rank has whole heads: the keys and values of its queries.
TEST(TensorParallel, DividesGroupedQueriesWithTheirKeys) {
  for (const int ranks : {2, 3, 4}) {
    const int64_t kv = ranks == 3 ? 3 : 4, heads = ranks == 4 ? 4 : 12;
    const Numbers all = on_ranks(ranks, [&](TensorGroup& group) {
      Numbers result = compare(llama_case("llama", heads, kv, false), group);
      result.merge(compare(llama_case("tied", heads, kv, true), group));
      return result;
    });
    expect_equal(all, "llama", 2 + 2 * 7);  // both tables, and all matrices
    expect_equal(all, "tied", 1 + 2 * 7);
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
      Numbers result;
      for (const Case& c : {gpt_case(), llama_case("llama", 4, 4, false)}) {
        Model model = made(c.factory);
        const ModelSharding sharding = shard_model(model, group);
        group.reset_traffic();
        model.loss(model.forward(c.input), c.target).backward();
        double elements = 0, calls = 0;
        for (const auto& [layer, traffic] : group.traffic()) {
          if (!layer.starts_with(sharding.transformer_prefix)) continue;
          elements += traffic.elements;
          calls += static_cast<double>(traffic.calls);
        }
        const auto layers = static_cast<double>(sharding.transformer_layers);
        result[c.name + ":elements"] = elements / layers;
        result[c.name + ":calls"] = calls / layers;
        result[c.name + ":width"] = static_cast<double>(sharding.width);
      }
      return result;
    });
    const double bsh = kBatch * 6 * 24, t = ranks;
    for (const std::string name : {"gpt", "llama"}) {
      EXPECT_EQ(all.at(name + ":width"), 24) << name;
      EXPECT_EQ(all.at(name + ":calls"), 4) << name;
      EXPECT_EQ(all.at(name + ":elements"), 8 * bsh * (t - 1) / t) << name;
    }
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

// Each rank's samples go through a layer whose outputs are sharded, and return with all outputs.
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

// Gradients of data-parallel layers are those of the mean loss of the rank's samples. Gradients of
// model-parallel layers are sums over the ranks.
TEST(AllSamples, ModelParallelLayersSeeTheSamplesOfAllRanks) {
  const Numbers all = on_ranks(2, [](TensorGroup& group) {
    const Case c = lenet_case();
    const Model whole = made(c.factory);
    Model model = made(c.factory);
    const TensorSlices slices = shard_for_all_samples(model, group, {"fc1", "fc3"});
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
    shard_for_all_samples(model, group, {"fc2"});
    const at::Tensor x = torch::randn({kBatch, 12}, torch::kDouble);
    model.loss(model.forward(x), torch::zeros({kBatch}, torch::kLong)).backward();
    return Numbers{{"elements", group.traffic().at("fc2").elements},
                   {"calls", static_cast<double>(group.traffic().at("fc2").calls)}};
  });
  EXPECT_EQ(all.at("calls"), 4);
  EXPECT_EQ(all.at("elements"), 2 * kBatch * 10 * 1 + 2 * kBatch * 8 / 2);
}

std::vector<std::string> model_parallel_layers(const std::vector<HybridLayer>& layers, int ranks) {
  std::vector<std::string> chosen;
  for (const HybridLayer& layer : layers) {
    if (layer.model_parallel(ranks)) chosen.push_back(layer.name);
  }
  return chosen;
}

TEST(AllSamples, BytesDecideWhichLayersAreModelParallel) {
  ModelSpec spec;
  spec.name = "lenet5";
  const ModelShape lenet{{1, 28, 28}, 10, false};
  const auto layers = hybrid_layers(zoo_model(spec, lenet), lenet, 64);
  ASSERT_EQ(layers.size(), 3u);
  // fc1: 25,600 + 3,840 elements against 48,120. fc2: 7,680 + 2,688 against 10,164. fc3: 5,376 + 320 against
  // 850.
  EXPECT_THAT(model_parallel_layers(layers, 2), ::testing::ElementsAre("fc1"));
  EXPECT_EQ(layers[1].model_elements(2), 10'368);
  EXPECT_EQ(layers[1].data_elements(2), 10'164);
  // With four ranks, the outputs count less: 7,680 + 1,344.
  EXPECT_THAT(model_parallel_layers(layers, 4), ::testing::ElementsAre("fc1", "fc2"));
  EXPECT_THAT(model_parallel_layers(layers, 121), ::testing::IsEmpty());  // fc1 has 120 features

  spec.name = "mlp";
  spec.widths = {16, 4096, 10};
  const ModelShape flat{{16}, 10, false};
  const auto wide = hybrid_layers(zoo_model(spec, flat), flat, 512);
  EXPECT_THAT(model_parallel_layers(wide, 2), ::testing::IsEmpty());
  EXPECT_GT(wide[0].model_elements(2), 14 * wide[0].data_elements(2));
}

// Returns the elements that rank 0 of `ranks` receives for a layer in a step of kBatch samples per rank.
double counted_elements(const Case& c, const std::string& layer, bool model_parallel, int ranks) {
  return on_ranks(ranks,
                  [&](TensorGroup& group) {
                    Model model = made(c.factory);
                    if (model_parallel) shard_for_all_samples(model, group, {layer});
                    model.loss(model.forward(c.input), c.target).backward();
                    const auto parameters = model.module->named_parameters();
                    if (!model_parallel) {
                      group.sum(at::cat({parameters[layer + ".weight"].grad().flatten(),
                                         parameters[layer + ".bias"].grad()}),
                                layer);
                    }
                    return Numbers{{"elements", group.traffic().at(layer).elements}};
                  })
      .at("elements");
}

// The choice must compare what the counters show.
TEST(AllSamples, BothFormulasAreWhatIsCounted) {
  for (const int ranks : {2, 3}) {
    const Case mlp = mlp_case({60, 90, 60, 6});
    const Case lenet = lenet_case();
    const auto compare = [&](const Case& c, const std::vector<HybridLayer>& layers) {
      for (const HybridLayer& layer : layers) {
        SCOPED_TRACE(c.name + " " + layer.name + ", ranks " + std::to_string(ranks));
        if (layer.features % ranks != 0) continue;  // otherwise the ranks differ
        EXPECT_DOUBLE_EQ(layer.model_elements(ranks), counted_elements(c, layer.name, true, ranks));
        // An all-reduce of up to 16 KB may show each rank the whole tensor.
        if (layer.parameters <= 2048) continue;
        EXPECT_NEAR(layer.data_elements(ranks), counted_elements(c, layer.name, false, ranks), 16);
      }
    };
    compare(mlp, hybrid_layers(mlp.factory, {{60}, 6, false}, kBatch * ranks));
    compare(lenet, hybrid_layers(lenet.factory, {{1, 16, 16}, 10, false}, kBatch * ranks));
  }
}

TEST(AllSamples, RefusesNamesThatAreNoFullyConnectedLayers) {
  const auto refused = [](const std::vector<std::string>& layers) -> std::string {
    const auto alone = make_single_group();
    const SystemClock clock;
    TensorGroup group(*alone, clock);
    Model model = made(lenet_case().factory);
    try {
      shard_for_all_samples(model, group, layers);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_THAT(refused({"fc12"}), ::testing::AllOf(HasSubstr("fc12"), HasSubstr("did you mean \"fc1\"?"),
                                                  HasSubstr("fc1 fc2 fc3")));
  EXPECT_THAT(refused({"conv1"}), HasSubstr("not a fully connected layer"));
  EXPECT_THAT(refused({"fc2", "fc2"}), HasSubstr("twice"));
}

// Returns the message that sharding `c` among `size` ranks throws. Ranks exchange nothing before the check,
// so one process is enough.
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
    WorkPtr start(const Call& call) override { return alone_->start(call); }
    void run(const Call&) override {}
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
    shard_model(model, group);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(TensorParallel, RefusesWhatCannotBeDivided) {
  EXPECT_THAT(refusal(gpt_case(3), 2),
              ::testing::AllOf(HasSubstr("model.heads"), HasSubstr("3 heads"), HasSubstr("model.heads = 4")));
  EXPECT_THAT(refusal(llama_case("llama", 4, 1, false), 2),
              ::testing::AllOf(HasSubstr("model.kv_heads"), HasSubstr("1 key and value heads"),
                               HasSubstr("model.kv_heads = 2")));
  EXPECT_THAT(refusal(llama_case("llama", 3, 3, false), 2), HasSubstr("model.heads: 3 heads"));
  EXPECT_THAT(refusal(mlp_case({12, 9, 3}), 10),
              ::testing::AllOf(HasSubstr("fc1.weight"), HasSubstr("--mesh tensor=9")));
  const auto plain = [] {
    const auto net = std::make_shared<torch::nn::LinearImpl>(4, 2);
    return Model{net, [net = net.get()](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
  };
  EXPECT_THAT(refusal({"plain", plain, {}, {}}, 2), HasSubstr("starling::Linear"));
  const auto grouped = [] {
    const auto net = std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(4, 4, 3).groups(2));
    return Model{net, [net = net.get()](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
  };
  EXPECT_THAT(refusal({"grouped", grouped, {}, {}}, 2), HasSubstr("2 groups"));
}

}  // namespace
}  // namespace starling
