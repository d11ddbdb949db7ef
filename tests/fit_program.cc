// A user's program for tests/fit_test.py: what Run::fit() offers beside the configuration. Arguments after
// "--":
//   --trained FILE      Saves the module that fit<Net>() returns, by rank: FILE.0, FILE.1, …
//   --kept              Uses the modules of the factory after the run: reads them, forward and backward.
//   --metrics           Measures the accuracy and the mean absolute error of the probabilities.
//   --stop-after N      The callback ends the run after N epochs. Each call prints a line.
//   --stop-rank R       Only rank R asks to stop.
//   --no-test           Without test data.
//   --only-rank-0 WHAT  Only rank 0 has a metric or a callback.
//   --other-data WHAT   Rank 1 has other data: size, content or test.
//   --regression        Real targets (257.25), mean squared error, and a loss that prints the types.
//   --view              A convolution whose output is viewed, as in many programs.
//   --script HOW        A module of TorchScript (loaded) or the same in C++ (plain), from equal weights.
//                       Rank 0 saves the trained TorchScript module as HOW.pt.
//   --spoil RANK        On this rank the gradients of the first layer are not finite, and the loss is.
//   --own               The optimizer is libtorch's SGD, made by the program.
//   --fail WHERE        An error of libtorch in: forward, loss, metric or test.
//   --model-loss        The factory sets Model::loss. With --both, fit() has a loss, too.
//   --settings          The program sets optimizer.lr, train.steps and optimizer.name in code.
//   --bad-setting       The program sets a key that does not exist.
//   --sum               The ranks sum their numbers after the run.
//   --take-data         The command line names the data. --ignore-data: but the program trains on its own.
#include <torch/script.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "starling/nn/layers/linear.h"
#include "starling/nn/script_module.h"
#include "starling/nn/state.h"
#include "starling/starling.h"

namespace {

struct Options {
  bool kept = false, metrics = false, regression = false, view = false, model_loss = false, both = false;
  bool no_test = false, own = false, sum = false;
  std::string trained, other_data, fail, only_rank_0, script;
  int64_t stop_after = 0, stop_rank = -1, spoil = -1;
};

Options options_of(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--kept") options.kept = true;
    if (word == "--metrics") options.metrics = true;
    if (word == "--regression") options.regression = true;
    if (word == "--view") options.view = true;
    if (word == "--model-loss") options.model_loss = true;
    if (word == "--both") options.both = true;
    if (word == "--no-test") options.no_test = true;
    if (word == "--only-rank-0") options.only_rank_0 = words.at(++i);
    if (word == "--script") options.script = words.at(++i);
    if (word == "--trained") options.trained = words.at(++i);
    if (word == "--other-data") options.other_data = words.at(++i);
    if (word == "--own") options.own = true;
    if (word == "--sum") options.sum = true;
    if (word == "--spoil") options.spoil = std::stoll(words.at(++i));
    if (word == "--fail") options.fail = words.at(++i);
    if (word == "--stop-after") options.stop_after = std::stoll(words.at(++i));
    if (word == "--stop-rank") options.stop_rank = std::stoll(words.at(++i));
  }
  return options;
}

// starling::Linear takes the place of torch::nn::Linear.
struct NetImpl : torch::nn::Module {
  starling::Linear first{nullptr}, second{nullptr};
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Options options;
  bool spoiled = false;

  explicit NetImpl(Options with) : options(std::move(with)) {
    if (options.view) {
      conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)));
      second = register_module("second", starling::Linear(4 * 4 * 4, 2));
      return;
    }
    first = register_module("first", starling::Linear(2, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", starling::Linear(16, options.regression ? 1 : 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (options.fail == "forward" || (options.fail == "test" && !is_training())) return x.view({-1, 1000003});
    if (options.view) return second(torch::relu(conv(x)).view({-1, 4 * 4 * 4}));
    const at::Tensor hidden = norm(first(x));
    if (spoiled && hidden.requires_grad())
      hidden.register_hook([](const at::Tensor& gradient) { return gradient / 0; });
    const at::Tensor y = second(torch::relu(hidden));
    return options.regression ? y.squeeze(1) : y;
  }
};
TORCH_MODULE(Net);

std::shared_ptr<const starling::Source> points(int64_t n, const Options& options, int rank, bool test) {
  const bool here = rank == 1 && (test ? options.other_data == "test" : options.other_data != "test");
  if (here && (options.other_data == "size" || options.other_data == "test")) n += 16;
  at::Tensor x = torch::linspace(-1, 1, 2 * n).reshape({2, n}).t().contiguous();
  if (here && options.other_data == "content") x = x + 1;
  if (options.view) x = torch::linspace(-1, 1, n * 48).reshape({n, 3, 4, 4});
  const at::Tensor above = x.flatten(1).sin().sum(1) > 0;
  if (options.regression) return starling::tensor_source(x, above.to(torch::kFloat) + 257.25);
  return starling::tensor_source(x, above.to(torch::kLong));
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  static bool said = false;
  if (!said) {
    said = true;
    std::printf("types %s %s target %.2f\n", c10::toString(output.scalar_type()),
                c10::toString(target.scalar_type()), target.min().item<double>());
  }
  return torch::mse_loss(output, target);
}

double absolute_error(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor right = output.softmax(1).gather(1, target.unsqueeze(1)).squeeze(1);
  return (1 - right).mean().item<double>();
}

starling::FitOptions fit_options(const Options& options, int rank) {
  starling::FitOptions fit;
  if (options.metrics) fit.metric("accuracy", starling::top1).metric("mae", absolute_error);
  if (options.only_rank_0 == "metric" && rank == 0) fit.metric("accuracy", starling::top1);
  if (options.only_rank_0 == "callback" && rank == 0)
    fit.on_epoch([](const starling::EpochState&, const starling::Evaluation&) {});
  if (options.fail == "metric")
    fit.metric("broken",
               [](const at::Tensor& output, const at::Tensor&) { return output.view({-1, 1000003}); });
  if (options.own)
    fit.optimizer([](std::vector<at::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01));
    });
  if (options.stop_after > 0) {
    fit.on_epoch([options, rank](const starling::EpochState& state, const starling::Evaluation& e) {
      std::printf("epoch %.2f step %lld loss %.6f samples %lld rank %d\n", state.epoch,
                  static_cast<long long>(state.step), e.loss, static_cast<long long>(e.samples), rank);
      std::fflush(stdout);
      const bool asks = options.stop_rank < 0 || options.stop_rank == rank;
      return asks && state.epoch >= static_cast<double>(options.stop_after) ? starling::kStop
                                                                            : starling::kContinue;
    });
  }
  return fit;
}

starling::Settings settings_of(int argc, char** argv) {
  starling::Settings settings;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--settings") {
      settings = {{"optimizer.lr", 0.25},
                  {"train.steps", 7},
                  {"optimizer.name", "adagrad"},
                  {"exchange.adaptive_rho", false}};
    }
    if (word == "--bad-setting") settings.set("optimizer.rate", 0.1);
  }
  return settings;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A network for pictures of any size.
struct Classifier : torch::nn::Module {
  torch::nn::Linear line{nullptr};
  Classifier(const std::vector<int64_t>& shape, int64_t classes)
      : line(register_module("line", torch::nn::Linear(c10::multiply_integers(shape), classes))) {}
  at::Tensor forward(const at::Tensor& x) { return line(x.flatten(1)); }
};

// A program whose command line names the data. With `ignore` it trains on other data.
void train_on_named_data(starling::Run& run, bool ignore) {
  if (ignore) {
    run.fit(starling::model<Classifier>(std::vector<int64_t>{2}, 2), starling::cross_entropy,
            points(512, {}, run.rank(), false));
    return;
  }
  const starling::DataSets data = run.data();
  const starling::SourceInfo& info = data.train->info();
  run.fit(starling::model<Classifier>(info.input_shape, info.classes), starling::cross_entropy, data.train,
          data.test);
}

struct PlainNet : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 2));
  PlainNet() {
    const torch::NoGradGuard guard;
    for (const auto& p : named_parameters())
      p.value().copy_(torch::linspace(-0.5, 0.5, p.value().numel()).sin().view_as(p.value()));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
};

// Writes a TorchScript module that computes what PlainNet computes, from the same weights.
void write_script(const std::string& path) {
  const PlainNet plain;
  torch::jit::Module net("net"), first("first"), second("second");
  for (auto& [module, layer] : {std::pair{&first, &plain.first}, {&second, &plain.second}}) {
    module->register_parameter("weight", (*layer)->weight, false);
    module->register_parameter("bias", (*layer)->bias, false);
  }
  net.register_module("first", first);
  net.register_module("second", second);
  net.define(R"(
def forward(self, x):
    h = torch.relu(torch.linear(x, self.first.weight, self.first.bias))
    return torch.linear(h, self.second.weight, self.second.bias)
)");
  net.save(path);
}

void train_script(starling::Run& run, const std::string& how,
                  const std::shared_ptr<const starling::Source>& train) {
  if (how == "plain") {
    run.fit<PlainNet>([] { return std::make_shared<PlainNet>(); }, starling::cross_entropy, train);
    return;
  }
  const std::string path = "script." + std::to_string(run.rank()) + ".pt";
  write_script(path);
  const auto trained = run.fit<starling::ScriptModule>(
      [path] { return std::make_shared<starling::ScriptModule>(path); }, starling::cross_entropy, train);
  if (run.rank() == 0) trained.model->save_script(how + ".pt");
}

// What a program may do with a module of the factory after the run.
void use(NetImpl& net, int rank) {
  net.train();
  const at::Tensor x = torch::ones({4, 2});
  double sum = 0;
  for (at::Tensor& p : net.parameters()) sum += p.sum().item<double>();
  const at::Tensor y = net.forward(x.to(net.parameters().front().scalar_type())).sum();
  y.backward();
  std::printf("kept rank %d sum %.3f gradient %d\n", rank, sum,
              static_cast<int>(net.second->weight.grad().defined()));
}

void print_sum(starling::Run& run) {
  std::vector<at::Tensor> numbers = {torch::full({1}, run.rank() + 1.0)};
  run.process_group()->allreduce(numbers)->wait();
  if (run.rank() == 0) std::printf("sum %.0f\n", numbers[0].item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  starling::Extensions extensions;
  if (has(words, "--take-data")) extensions.take_data();
  starling::Run run = starling::init(argc, argv, settings_of(argc, argv), extensions);
  if (has(words, "--take-data")) {
    train_on_named_data(run, has(words, "--ignore-data"));
    return 0;
  }
  const Options options = options_of(run.arguments());
  const int rank = run.rank();
  const starling::FitOptions fit = fit_options(options, rank);
  const auto train = points(512, options, rank, false);
  const auto test = options.no_test ? nullptr : points(64, options, rank, true);
  starling::Loss loss = starling::cross_entropy;
  if (options.regression) loss = squared_error;
  if (options.fail == "loss")
    loss = [](const at::Tensor& output, const at::Tensor&) { return output.view({-1, 1000003}); };

  if (!options.script.empty()) {
    train_script(run, options.script, train);
    return 0;
  }
  if (!options.trained.empty()) {
    const starling::Trained<NetImpl> trained =
        run.fit<NetImpl>([options] { return Net(options); }, loss, train, test, fit);
    if (trained.model->is_training()) std::puts("the trained module is in training mode");
    starling::save_model(*trained.model, options.trained + "." + std::to_string(rank));
    std::printf("trained rank %d steps %lld\n", rank, static_cast<long long>(trained.result.steps));
    return 0;
  }
  std::vector<std::shared_ptr<NetImpl>> made;
  const auto factory = [&made, &options, rank] {
    auto net = std::make_shared<NetImpl>(options);
    net->spoiled = options.spoil == rank;
    made.push_back(net);
    starling::Model model{net, [net](const at::Tensor& x) { return net->forward(x); }, nullptr};
    if (options.model_loss)
      model.loss = [](const at::Tensor& output, const at::Tensor& target) {
        return 0 * torch::cross_entropy_loss(output, target) + 42;
      };
    return model;
  };
  run.fit(factory, options.model_loss && !options.both ? nullptr : loss, train, test, fit);
  if (options.sum) print_sum(run);
  if (options.kept) {
    for (const auto& net : made) use(*net, rank);
  }
}
