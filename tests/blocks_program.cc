// A user's program for tests/blocks_test.py: plain libtorch modules whose blocks and layers Starling finds by
// their names. Arguments after "--":
//   --model NAME      One of the models below.
//   --blocks NAMES    FitOptions::blocks(), separated by commas, in place of the model's own.
//   --cut PLAN        FitOptions::tensor_plan(), for example "layers.*.fc1=column,layers.*.fc2=row".
//   --adam            Updates by an optimizer of the program, libtorch's AdamW.
//   --own             Updates by an optimizer that only the program knows.
//   --groups          The layers have a rate and a weight decay of their own. --no-match: with a wrong
//   pattern.
//   --trained FILE    Saves the trained module, by rank: FILE.0, FILE.1, …
//   --plain N FILE    Trains N steps in a plain libtorch loop on one process and saves the module.
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "starling/nn/state.h"
#include "starling/starling.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kSamples = 48, kTest = 10, kBatch = 8, kFeatures = 6, kWidth = 10, kClasses = 5, kWords = 7;
constexpr double kLr = 0.05;

// A layer of the program's own, with a residual connection.
struct LayerImpl : nn::Module {
  LayerImpl() {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    fc1 = register_module("fc1", nn::Linear(kWidth, 2 * kWidth));
    fc2 = register_module("fc2", nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) { return x + fc2(torch::gelu(fc1(norm(x)))); }
  nn::LayerNorm norm{nullptr};
  nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Layer);

// A model whose layers are a list.
struct Deep : nn::Module {
  explicit Deep(bool bias = true) {
    embed = register_module("embed", nn::Linear(nn::LinearOptions(kFeatures, kWidth).bias(bias)));
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(Layer());
    head = register_module("head", nn::Linear(kWidth, kClasses));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = embed(x);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  nn::Linear embed{nullptr}, head{nullptr};
  nn::ModuleList layers{nullptr};
};

// A model of text, whose layers compute tensors of three dimensions.
struct Text : nn::Module {
  Text() {
    words = register_module("words", nn::Embedding(11, kWidth));
    layers = register_module("layers", nn::ModuleList(Layer(), Layer()));
    head = register_module("head", nn::Linear(nn::LinearOptions(kWidth, kClasses).bias(false)));
  }
  torch::Tensor forward(torch::Tensor ids) {
    torch::Tensor x = words(ids);
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return head(x.mean(1));
  }
  nn::Embedding words{nullptr};
  nn::ModuleList layers{nullptr};
  nn::Linear head{nullptr};
};

// A model that computes functions between its modules.
struct Mixed : nn::Module {
  Mixed() {
    first = register_module("first", nn::Linear(kFeatures, kWidth));
    second = register_module("second", nn::Linear(kWidth, kWidth));
    third = register_module("third", nn::Linear(kWidth, kClasses));
  }
  torch::Tensor forward(torch::Tensor x) { return third(torch::relu(second(torch::relu(first(x))))); }
  nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

// A model that gives the parameters of its layers to functions of libtorch.
struct Functional : Mixed {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::linear(x, first->weight, first->bias));
    return third(torch::relu(torch::linear(x, second->weight, second->bias)));
  }
};

// A model with a Sequential between other layers.
struct Inner : nn::Module {
  Inner() {
    stem = register_module("stem", nn::Linear(kFeatures, kWidth));
    body =
        register_module("body", nn::Sequential(nn::Tanh(), nn::Linear(kWidth, kWidth), nn::Tanh(), Layer()));
    head = register_module("head", nn::Linear(kWidth, kClasses));
    for (torch::Tensor& p : stem->parameters()) p.requires_grad_(false);
  }
  torch::Tensor forward(torch::Tensor x) { return head(body->forward(stem(x))); }
  nn::Linear stem{nullptr}, head{nullptr};
  nn::Sequential body{nullptr};
};

// A model with a parameter of its own, and one whose block uses another block's parameters.
struct Scaled : Deep {
  Scaled() { scale = register_parameter("scale", torch::ones({kFeatures})); }
  torch::Tensor forward(torch::Tensor x) { return Deep::forward(x * scale); }
  torch::Tensor scale;
};

nn::Sequential sequential() {
  return nn::Sequential(nn::Linear(kFeatures, kWidth), nn::ReLU(nn::ReLUOptions(true)),
                        nn::Linear(kWidth, kWidth), nn::LayerNorm(nn::LayerNormOptions({kWidth})), nn::GELU(),
                        nn::Linear(kWidth, 3 * kWidth), nn::Dropout(0.0), nn::Tanh(),
                        nn::Linear(3 * kWidth, kClasses));
}

// A layer that the model calls twice.
nn::Sequential twice() {
  const nn::Linear shared(kWidth, kWidth);
  return nn::Sequential(nn::Linear(kFeatures, kWidth), shared, nn::Tanh(), shared,
                        nn::Linear(kWidth, kClasses));
}

// The slope of the PReLU is a parameter of all outputs of the layer before it.
nn::Sequential sloped() {
  return nn::Sequential(nn::Linear(kFeatures, kWidth), nn::PReLU(), nn::Linear(kWidth, kClasses));
}

// A function between its layers draws a number of random numbers that depends on the size of its input.
struct Noisy : nn::Module {
  Noisy() {
    first = register_module("first", nn::Linear(kFeatures, 5));
    second = register_module("second", nn::Linear(5, kClasses));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    return second(is_training() ? x * torch::rand_like(x) : x);
  }
  nn::Linear first{nullptr}, second{nullptr};
};

struct Job {
  std::string model = "sequential", trained, plain;
  std::vector<std::string> blocks;
  starling::TensorPlan plan;
  int64_t plain_steps = 0;
  bool adam = false, own = false, groups = false, no_match = false;
};

std::vector<std::string> words_of(const std::string& text, char end) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, end);) words.push_back(word);
  return words;
}

starling::TensorPlan plan_of(const std::string& text) {
  const std::map<std::string, starling::LayerCut> cuts = {
      {"column", starling::kColumn}, {"row", starling::kRow}, {"gathered", starling::kGathered}};
  starling::TensorPlan plan;
  for (const std::string& entry : words_of(text, ',')) {
    const std::vector<std::string> words = words_of(entry, '=');
    plan.push_back({words.at(0), cuts.at(words.at(1))});
  }
  return plan;
}

Job job_of(const std::vector<std::string>& words) {
  Job job;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--model") job.model = words.at(++i);
    if (words[i] == "--blocks") job.blocks = words_of(words.at(++i), ',');
    if (words[i] == "--cut") job.plan = plan_of(words.at(++i));
    if (words[i] == "--trained") job.trained = words.at(++i);
    if (words[i] == "--adam") job.adam = true;
    if (words[i] == "--own") job.own = true;
    if (words[i] == "--groups") job.groups = true;
    if (words[i] == "--no-match") job.no_match = true;
    if (words[i] == "--plain") {
      job.plain_steps = std::stoll(words.at(++i));
      job.plain = words.at(++i);
    }
  }
  return job;
}

std::shared_ptr<const starling::Source> data(const Job& job, int64_t n, int64_t seed) {
  torch::manual_seed(seed);
  const torch::Tensor x =
      job.model == "text" ? torch::randint(11, {n, kWords}) : torch::randn({n, kFeatures}, torch::kDouble);
  return starling::tensor_source(x, torch::randint(kClasses, {n}));
}

// An optimizer that Starling does not know.
struct OwnSgd : torch::optim::SGD {
  using SGD::SGD;
};

// Returns the optimizer of the plain loop.
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Job& job, const nn::Module& net,
                                                      const std::vector<torch::Tensor>& parameters) {
  if (job.adam) return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  const auto options = torch::optim::SGDOptions(kLr).momentum(0.9);
  if (!job.groups) return std::make_unique<torch::optim::SGD>(parameters, options);
  std::vector<torch::Tensor> layers, rest;
  for (const auto& item : net.named_parameters())
    (item.key().rfind("layers.", 0) == 0 ? layers : rest).push_back(item.value());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(layers, std::make_unique<torch::optim::SGDOptions>(
                                  torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.1)));
  groups.emplace_back(rest, std::make_unique<torch::optim::SGDOptions>(options));
  return std::make_unique<torch::optim::SGD>(std::move(groups), options);
}

template <typename Net>
void plain_loop(const Job& job, Net& net) {
  net.to(torch::kDouble);
  std::vector<torch::Tensor> parameters;  // each of them once
  for (const torch::Tensor& p : net.parameters()) {
    const auto same = [&](const torch::Tensor& other) { return other.is_same(p); };
    if (std::none_of(parameters.begin(), parameters.end(), same)) parameters.push_back(p);
  }
  const auto optimizer = optimizer_of(job, net, parameters);
  const auto source = data(job, kSamples, 1);
  for (int64_t step = 0; step < job.plain_steps; ++step) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < kBatch; ++i) indices.push_back((step * kBatch + i) % kSamples);
    const starling::Batch batch = source->read(indices, 0);
    optimizer->zero_grad();
    torch::cross_entropy_loss(net.forward(batch.input), batch.target).backward();
    optimizer->step();
  }
  starling::save_model(net, job.plain);
}

// Draws the initial weights, which are then equal in both loops.
template <typename Net, typename Make>
void train(starling::Run& run, const Job& job, const Make& make, starling::FitOptions options) {
  const auto made = [&] {
    torch::manual_seed(11);
    return make();
  };
  if (job.plain_steps > 0) return plain_loop(job, *made());
  if (!job.blocks.empty()) options.blocks(job.blocks);
  options.tensor_plan(job.plan);
  if (job.groups) options.group(job.no_match ? "layer.*" : "layers.*", {.lr = 0.02, .weight_decay = 0.1});
  if (job.adam) {
    options.optimizer([](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
    });
  }
  if (job.own) {
    options.optimizer([](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<OwnSgd>(parameters, torch::optim::SGDOptions(kLr).momentum(0.9));
    });
  }
  const auto trained =
      run.fit<Net>(made, starling::cross_entropy, data(job, kSamples, 1), data(job, kTest, 2), options);
  if (!job.trained.empty())
    starling::save_model(*trained.model, job.trained + "." + std::to_string(run.rank()));
}

template <typename Net>
void train(starling::Run& run, const Job& job, const starling::FitOptions& options = {}) {
  train<Net>(run, job, [] { return std::make_shared<Net>(); }, options);
}

torch::Tensor first_block(Mixed& net, const torch::Tensor& x) {
  return torch::relu(net.first(x));
}

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv,
                                     {{"train.precision", "fp64"},
                                      {"train.global_batch", kBatch},
                                      {"train.eval_batch", 5},
                                      {"data.order", "sequential"},
                                      {"optimizer.lr", kLr},
                                      {"optimizer.momentum", 0.9}});
  const Job job = job_of(run.arguments());
  starling::FitOptions options;
  if (job.model == "sequential") train<nn::SequentialImpl>(run, job, sequential, options);
  if (job.model == "twice") train<nn::SequentialImpl>(run, job, twice, options);
  if (job.model == "sloped") train<nn::SequentialImpl>(run, job, sloped, options);
  if (job.model == "noisy") train<Noisy>(run, job);
  if (job.model == "functional") train<Functional>(run, job);
  if (job.model == "inner") train<Inner>(run, job);
  if (job.model == "deep") train<Deep>(run, job, options.block<Layer>("layers.*"));
  if (job.model == "deep-unknown") train<Deep>(run, job);
  if (job.model == "deep-other") train<Deep>(run, job, options.block<Mixed>("layers.*"));
  if (job.model == "deep-unused")
    train<Deep>(run, job, options.block<Layer>("layers.*").block<Layer>("blocks.*"));
  if (job.model == "text") {
    options.blocks({"words", "layers.*", "head"}).block<LayerImpl>("layers.*");
    train<Text>(run, job, options.block("head", [](const Text& net, const torch::Tensor& x) {
      return net.head.ptr()->forward(x.mean(1));
    }));
  }
  if (job.model == "scaled") train<Scaled>(run, job, options.block<Layer>("layers.*"));
  if (job.model == "mixed-plain") train<Mixed>(run, job);
  if (job.model == "mixed") {
    options.blocks({"first", "second", "third"}).block("first", first_block);
    train<Mixed>(run, job, options.block("second", [](nn::LinearImpl& second, const starling::Tensors& x) {
      return torch::relu(second.forward(x.at(0)));
    }));
  }
  if (job.model == "mixed-foreign") {  // the second block computes with the third layer
    options.blocks({"first", "third", "second"}).block("first", first_block);
    options.block("third", [](Mixed& net, const torch::Tensor& x) { return torch::relu(net.second(x)); });
    train<Mixed>(run, job,
                 options.block("second", [](Mixed& net, const torch::Tensor& x) { return net.third(x); }));
  }
  if (job.model == "filled") {
    const starling::ModuleFactory make = [] {
      auto net = sequential();
      starling::Model model = starling::model_of_module(net.ptr());
      model.blocks = {{"all", {net.ptr()}, [net](const starling::Tensors& x) mutable -> starling::Tensors {
                         return {net->forward(x.at(0))};
                       }}};
      return model;
    };
    run.fit(make, starling::cross_entropy, data(job, kSamples, 1), nullptr, options.blocks({"*"}));
  }
}
