// A user's program for tests/device_test.py: trains on the CPU or on the test device
// (starling/torch_testing/test_device.h). Arguments after "--":
//   --task NAME       mlp, lenet or heads. lenet has convolutions, pooling and batch norm. heads has two
//                     inputs, outputs and targets, and a weighted loss. One of its parameters is frozen,
//                     one unused.
//   --trained FILE    Saves the trained module, by rank: FILE.0, FILE.1, …
//   --adam            Updates by an optimizer of the program.
//   --no-device       Does not register the test device.
//   --where           Prints the device of this rank.
//   --own-loop        Trains the module in a loop of the program.
//   --epochs N        The loop ends after N epochs. The default is 2.
//   --parts N         The loop computes each batch in N passes.
//   --clip            The loop clips the gradients of the module after synchronize().
//   --limit           The loop limits the parameters of the module after each step.
//   --fault WHAT      What the loop does otherwise: own-zero-grad (of its own optimizer), stays (the module
//                     stays in host memory), moves (to the device for tests) or frozen (all parameters).
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "starling/nn/state.h"
#include "starling/starling.h"
#include "starling/torch_testing/test_device.h"

namespace {

using Tensors = std::vector<torch::Tensor>;
constexpr int64_t kSamples = 48, kTest = 14, kBatch = 12;

struct Mlp : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  Mlp() {
    first = register_module("first", torch::nn::Linear(20, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x).relu()); }
};

struct LeNet : torch::nn::Module {
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear full{nullptr};
  LeNet() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    conv2 = register_module("conv2", torch::nn::Conv2d(3, 4, 3));
    full = register_module("full", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::max_pool2d(norm(conv1(x)).relu(), 2);
    return full(torch::max_pool2d(conv2(h).relu(), 2).flatten(1));
  }
};

struct Heads {
  torch::Tensor values, logits;
};
struct Wanted {
  torch::Tensor values, classes;
};

struct TwoHeads : torch::nn::Module {
  torch::nn::Embedding names{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::Tensor frozen, unused;
  TwoHeads() {
    names = register_module("names", torch::nn::Embedding(7, 4));
    first = register_module("first", torch::nn::Linear(9, 6));
    second = register_module("second", torch::nn::Linear(6, 3));
    frozen = register_parameter("frozen", torch::rand({6}), false);
    unused = register_parameter("unused", torch::rand({8}));
  }
  Heads forward(const torch::Tensor& x, const torch::Tensor& name) {
    const auto h = first(torch::cat({x, names(name)}, 1)).tanh() * frozen;
    return {h, second(h)};
  }
};

starling::WeightedLoss weighted(const Heads& heads, const Wanted& wanted) {
  const auto errors = (heads.values - wanted.values).square();
  return {errors.sum() + torch::nll_loss(heads.logits.log_softmax(1), wanted.classes, {}, at::Reduction::Sum),
          wanted.classes.add(1).sum()};
}

starling::Mean classes_right(const Heads& heads, const Wanted& wanted) {
  return starling::top1(heads.logits, wanted.classes);
}

struct Job {
  std::string task = "mlp", trained, fault;
  int64_t parts = 1, epochs = 2;
  bool clip = false, limit = false;
  bool adam = false, device = true, own_loop = false, where = false;
};

Job job_of(const std::vector<std::string>& words) {
  Job job;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--task") job.task = words.at(++i);
    if (words[i] == "--trained") job.trained = words.at(++i);
    if (words[i] == "--adam") job.adam = true;
    if (words[i] == "--no-device") job.device = false;
    if (words[i] == "--where") job.where = true;
    if (words[i] == "--own-loop") job.own_loop = true;
    if (words[i] == "--epochs") job.epochs = std::stoll(words.at(++i));
    if (words[i] == "--parts") job.parts = std::stoll(words.at(++i));
    if (words[i] == "--clip") job.clip = true;
    if (words[i] == "--limit") job.limit = true;
    if (words[i] == "--fault") job.fault = words.at(++i);
  }
  return job;
}

std::shared_ptr<const starling::Source> images(int64_t n, int64_t seed, const std::vector<int64_t>& shape) {
  torch::manual_seed(seed);
  std::vector<int64_t> sizes = {n};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return starling::tensor_source({torch::randn(sizes, torch::kDouble)}, {torch::randint(3, {n})});
}

std::shared_ptr<const starling::Source> two_inputs(int64_t n, int64_t seed) {
  torch::manual_seed(seed);
  return starling::tensor_source({torch::randn({n, 5}, torch::kDouble), torch::randint(7, {n})},
                                 {torch::randn({n, 6}, torch::kDouble), torch::randint(3, {n})});
}

template <typename Net>
void fit(starling::Run& run, const Job& job, const starling::Loss& loss,
         std::shared_ptr<const starling::Source> train, std::shared_ptr<const starling::Source> test,
         starling::FitOptions options) {
  if (job.adam) {
    options.optimizer([](const std::vector<torch::Tensor>& parameters) {
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
    });
  }
  const auto make = [] {
    torch::manual_seed(11);
    return std::make_shared<Net>();
  };
  const auto trained = run.fit<Net>(make, loss, std::move(train), std::move(test), options);
  if (!job.trained.empty())
    starling::save_model(*trained.model, job.trained + "." + std::to_string(run.rank()));
}

// Module::to() refuses devices that libtorch does not know.
void move(torch::nn::Module& module, at::Device device) {
  module.to(torch::kDouble);
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const torch::Tensor& tensor : tensors)
      tensor.unsafeGetTensorImpl()->shallow_copy_from(tensor.detach().to(device).getIntrusivePtr());
  }
}

template <typename Net>
at::Tensor loss_of(Net& net, const Tensors& inputs, const Tensors& targets, double& weight) {
  if constexpr (std::is_same_v<Net, TwoHeads>) {
    const starling::WeightedLoss loss =
        weighted(net.forward(inputs[0], inputs[1]), Wanted{targets[0], targets[1]});
    weight = loss.weight;
    return loss.sum;
  } else {
    return torch::cross_entropy_loss(net.forward(inputs[0]), targets[0]);
  }
}

template <typename Net>
void own_loop(starling::Run& run, const Job& job, const std::shared_ptr<const starling::Source>& train) {
  torch::manual_seed(11);
  auto net = run.replicate(std::make_shared<Net>());
  const at::Device device = run.device();
  move(*net, job.fault == "stays"   ? at::Device(at::kCPU)
             : job.fault == "moves" ? starling::test_device()
                                    : device);
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& p : net->parameters()) {
    if (p.requires_grad()) trained.push_back(p);
  }
  std::unique_ptr<torch::optim::Optimizer> own;
  if (job.adam)
    own = std::make_unique<torch::optim::Adagrad>(trained, torch::optim::AdagradOptions(0.01));
  else
    own = std::make_unique<torch::optim::SGD>(trained, torch::optim::SGDOptions(0.05).momentum(0.9));
  for (torch::Tensor& p : trained) {
    if (job.fault == "frozen") p.set_requires_grad(false);
  }
  starling::DistributedOptimizer optimizer(run, *net, *own);
  auto loader = run.loader(train, kBatch);
  auto checkpoint = run.checkpoint();
  checkpoint.add(optimizer).add("loader", loader);
  checkpoint.resume();
  while (loader.epoch() < job.epochs) {
    for (auto& batch : loader) {
      job.fault == "own-zero-grad" ? own->zero_grad() : optimizer.zero_grad();
      Tensors inputs, targets;
      for (const torch::Tensor& t : batch.inputs()) inputs.push_back(t.to(device));
      for (const torch::Tensor& t : batch.targets()) targets.push_back(t.to(device));
      for (int64_t part = 0; part < job.parts; ++part) {
        double weight = 0;
        at::Tensor loss = loss_of(*net, inputs, targets, weight);
        if (weight > 0) optimizer.weigh(weight);
        (weight > 0 ? loss : loss / static_cast<double>(job.parts)).backward();
      }
      if (job.clip) {
        optimizer.synchronize();
        torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
      }
      optimizer.step();
      checkpoint.step();
      if (job.limit) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& p : trained) p.clamp_(-0.3, 0.3);
      }
    }
  }
  checkpoint.save();
  const auto shown = optimizer.consensus();
  for (const torch::Tensor& p : net->parameters()) {
    if (p.device() != device) throw std::logic_error("the module has left its device");
  }
  if (job.trained.empty()) return;
  move(*net, at::kCPU);
  starling::save_model(*net, job.trained + "." + std::to_string(run.rank()));
}

template <typename Net>
void train(starling::Run& run, const Job& job, const starling::Loss& loss,
           const std::shared_ptr<const starling::Source>& train,
           const std::shared_ptr<const starling::Source>& test, const starling::FitOptions& options) {
  job.own_loop ? own_loop<Net>(run, job, train) : fit<Net>(run, job, loss, train, test, options);
}

}  // namespace

int main(int argc, char** argv) {
  // A loop of the program decides the batch and the optimizer in code.
  const bool loop = std::find(argv, argv + argc, std::string("--own-loop")) != argv + argc;
  starling::Settings settings = {{"data.order", "sequential"}};
  if (!loop)
    settings.set("train.precision", "fp64")
        .set("train.global_batch", kBatch)
        .set("train.eval_batch", 5)
        .set("optimizer.lr", 0.05)
        .set("optimizer.momentum", 0.9);
  starling::Run run = starling::init(argc, argv, settings);
  const Job job = job_of(run.arguments());
  if (job.device) starling::test_device();
  const auto right = starling::FitOptions().metric("right", starling::top1);
  const auto cross_entropy = starling::cross_entropy;
  if (job.where) {
    std::printf("rank %d: %s\n", run.rank(), run.device().str().c_str());
  } else if (job.task == "mlp") {
    train<Mlp>(run, job, cross_entropy, images(kSamples, 1, {20}), images(kTest, 2, {20}), right);
  } else if (job.task == "lenet") {
    train<LeNet>(run, job, cross_entropy, images(kSamples, 1, {1, 12, 12}), images(kTest, 2, {1, 12, 12}),
                 right);
  } else if (job.task == "heads") {
    train<TwoHeads>(run, job, weighted, two_inputs(kSamples, 1), two_inputs(kTest, 2),
                    starling::FitOptions().metric("right", classes_right));
  }
}
