// A user's program with a training loop of its own, for tests/loop_test.py. With the first word "joined" it
// calls starling::join() with the settings KEY=VALUE that follow. Arguments after "--", each with two dashes
// before it:
//   fit               Trains by Run::fit() and the optimizer of the configuration instead.
//   own               With fit: the optimizer of the program, by FitOptions::optimizer().
//   groups            The first layer has its own rate and weight decay. no-match: with a wrong pattern.
//   clip-value        Clips each element of the gradient.
//   parts             fit() computes each batch in four parts.
//   plain             libtorch alone: the optimizer of the program steps, and nothing is exchanged.
//   out FILE          Saves the weights of every rank to FILE.0, FILE.1, …
//   shown FILE        Saves the weights that the ranks agree on, likewise.
//   epochs N, samples N, batch N
//   optimizer NAME    sgd (with momentum), nesterov, adam, amsgrad, adagrad, decay, rmsprop, centered, lbfgs
//   accumulate N      Updates after every N batches.
//   clip              Clips the norm of the whole gradient after synchronize().
//   frozen            The first layer is frozen. unfreeze thaws it after an epoch.
//   unused            A layer takes no part in the loss. With odd-only, it does on odd ranks.
//   remake            Makes a new optimizer and a new DistributedOptimizer after each epoch.
//   two               Two networks with an optimizer each, as in a GAN.
//   schedule          A scheduler of libtorch halves the rate after every epoch.
//   uneven            The rate of the last group of parameters changes after an epoch.
//   carry             A state is carried from batch to batch and saved by rank. With fit, rank 1 kills itself
//   in
//                     the forward pass with the number that kill-at gives.
//   checkpoint        Saves and resumes. save-at N: saves after step N. kill-at N: kills itself then (with
//   kill-rank R: only that rank). stop-at N:
//                     asks the run to stop then.
//   float             fp32 in place of fp64.
//   fault WHAT        sparse, foreign, other-model, twice, nested, own-step, columns, own-weights, no-file,
//                     bug, rank-0-saves, no-resume, late-add, no-step or no-save
//   no-loader         Trains on the first batch, without end.
//   noise             Prints random numbers of libtorch's generator.
//   batches           Prints the first input of each batch.
//   several           Samples of two inputs and two targets that give the same loss.
//   weigh             The loss is a sum whose samples have different weights.
//   group             Collectives of the program's own are pending while the loop exchanges. The program
//   holds
//                     the group until its end.
//   clear-late        Clears the gradients before the next pass, and not after the update.
//   early             Makes a loader before the optimizer.
//   divide            The ranks of the tensor axis divide both layers.
//   rank-0-evaluates  Only rank 0 makes a pass through the module at the end.
//   modes             Compares the outputs under InferenceMode and autocast with the others.
//   rate              The rate of sgd is that of the configuration.
#include <torch/torch.h>

#include <ATen/autocast_mode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "starling/nn/state.h"
#include "starling/starling.h"

namespace {

struct Options {
  std::map<std::string, std::string> values;
  bool has(const std::string& name) const { return values.count(name) > 0; }
  int64_t number(const std::string& name, int64_t otherwise) const {
    return has(name) ? std::stoll(values.at(name)) : otherwise;
  }
};

Options options_of(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool valued = i + 1 < words.size() && words[i + 1].rfind("--", 0) != 0;
    options.values[words[i].substr(2)] = valued ? words[i + 1] : "";
    if (valued) ++i;
  }
  return options;
}

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, spare{nullptr};
  torch::nn::Embedding table{nullptr};
  bool uses_spare = false, carries = false;
  int rank = 0;
  int64_t kill_at = -1;
  inline static int64_t last_forwards = 0;  // of the module that trained last
  at::Tensor carry = torch::zeros({1, 8}), forwards = torch::zeros({1}, torch::kLong);

  explicit Net(const Options& options, int rank)
      : carries(options.has("carry")),
        rank(rank),
        kill_at(options.has("fit") && rank == 1 ? options.number("kill-at", -1) : -1) {
    const int64_t width =
        options.has("fault") && options.values.at("fault") == "other-model" && rank == 1 ? 9 : 8;
    first = register_module("first", torch::nn::Linear(3, width));
    second = register_module("second", torch::nn::Linear(width, 2));
    if (options.has("unused")) spare = register_module("spare", torch::nn::Linear(width, width));
    uses_spare = options.has("odd-only") && rank % 2 == 1;
    if (options.has("fault") && options.values.at("fault") == "sparse")
      table =
          register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(4, width).sparse(true)));
    if (options.has("frozen")) {
      for (auto& p : first->parameters()) p.set_requires_grad(false);
    }
    if (!options.has("float")) to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = torch::tanh(first(x));
    if (uses_spare) h = h + spare(h);
    if (!table.is_empty()) h = h + table(torch::zeros({x.size(0)}, torch::kLong));
    const at::Tensor y = second(carries ? h + carry.to(h.scalar_type()) : h);
    if (!carries || !is_training()) return y;
    carry = 0.5 * carry + 0.1 * x.mean().to(torch::kFloat).detach() + rank;
    forwards = forwards + 1;
    last_forwards = forwards.item<int64_t>();
    if (last_forwards == kill_at) ::raise(SIGKILL);
    return y;
  }
  std::map<std::string, at::Tensor*> carried() {
    if (!carries) return {};
    return {{"carry", &carry}, {"forwards", &forwards}};
  }
};

// Two groups of parameters: the first two have a rate and a weight decay of their own.
std::unique_ptr<torch::optim::Optimizer> optimizer_of_groups(const std::vector<at::Tensor>& parameters) {
  const auto options = torch::optim::SGDOptions(0.05).momentum(0.9);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + 2),
                      std::make_unique<torch::optim::SGDOptions>(
                          torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1)));
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 2, parameters.end()),
                      std::make_unique<torch::optim::SGDOptions>(options));
  return std::make_unique<torch::optim::SGD>(std::move(groups), options);
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Options& options,
                                                      std::vector<at::Tensor> parameters, double rate) {
  if (options.has("groups")) return optimizer_of_groups(parameters);
  const std::string name = options.has("optimizer") ? options.values.at("optimizer") : "sgd";
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(std::move(parameters), torch::optim::AdamOptions(0.01));
  if (name == "adagrad")
    return std::make_unique<torch::optim::Adagrad>(std::move(parameters), torch::optim::AdagradOptions(0.05));
  if (name == "decay")
    return std::make_unique<torch::optim::Adagrad>(
        std::move(parameters),
        torch::optim::AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.5));
  if (name == "amsgrad")
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(0.01).amsgrad(true));
  if (name == "centered")
    return std::make_unique<torch::optim::RMSprop>(
        std::move(parameters), torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
  if (name == "nesterov")
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
  if (name == "rmsprop")
    return std::make_unique<torch::optim::RMSprop>(std::move(parameters), torch::optim::RMSpropOptions(0.01));
  if (name == "lbfgs") return std::make_unique<torch::optim::LBFGS>(std::move(parameters));
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(rate).momentum(0.9));
}

std::shared_ptr<const starling::Source> points(const Options& options) {
  const int64_t n = options.number("samples", 52);
  const auto type = options.has("float") ? torch::kFloat : torch::kDouble;
  const at::Tensor x = torch::linspace(-1, 1, 3 * n, type).reshape({3, n}).t().contiguous();
  const at::Tensor target = (x.sin().sum(1) > 0).to(torch::kLong);
  if (options.has("several"))
    return starling::tensor_source({x / 4, x * 0.75},
                                   {torch::div(target, 2, "floor"), target - torch::div(target, 2, "floor")});
  return starling::tensor_source(x, target);
}

// Prints a line in one write, so that those of two ranks do not mix.
void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

class Program {
 public:
  Program(starling::Run& run, const Options& options) : run_(run), options_(options) {}

  // The loop of the library, for a comparison.
  void fit() {
    const auto make = [this] { return std::make_shared<Net>(options_, run_.rank()); };
    starling::FitOptions fit;
    if (options_.has("own"))
      fit.optimizer(
          [this](std::vector<at::Tensor> parameters) { return optimizer_of(options_, parameters, rate()); });
    if (options_.has("groups"))
      fit.group(options_.has("no-match") ? "third.*" : "first.*", {.lr = 0.01, .weight_decay = 0.1});
    const int64_t steps = options_.number("samples", 52) / options_.number("batch", 8);
    if (options_.has("schedule"))
      fit.schedule([steps](int64_t it) {  // libtorch's scheduler changes nothing in its first step
        return std::pow(0.5, static_cast<double>(std::max<int64_t>(0, it / steps - 1)));
      });
    if (options_.has("clip-value")) fit.clip_value(0.01);
    if (options_.has("parts")) fit.accumulate(4);
    const auto trained = run_.fit<Net>(make, starling::cross_entropy, points(options_), nullptr, fit);
    save("shown", *trained.model);
    say("rank " + std::to_string(run_.rank()) + " counts " + std::to_string(Net::last_forwards) + " batches");
  }

  void train() {
    torch::manual_seed(7 + run_.rank());  // the ranks' modules begin unequal
    starling::TensorPlan plan;
    if (options_.has("divide")) plan = {{"first", starling::kColumn}, {"second", starling::kRow}};
    if (has_fault("columns")) plan.pop_back();
    if (has_fault("own-weights")) return train_other_weights();
    net_ = run_.replicate(std::make_shared<Net>(options_, run_.rank()), plan);
    other_ = run_.replicate(std::make_shared<Net>(options_, run_.rank()), plan);
    if (has_fault("no-file")) starling::load_model(*net_, "missing.safetensors");
    if (has_fault("bug") && run_.rank() == 1) throw std::logic_error("a bug of the program");
    if (has_fault("nested")) run_.replicate(net_->first);
    other_->carries = false;  // the checkpoint has the state of the first network
    own_ = optimizer_of(options_, trained(*net_), rate());
    if (options_.has("early")) run_.loader(points(options_), options_.number("batch", 8));
    if (has_fault("foreign"))
      own_->add_parameters({torch::zeros({2}, torch::kDouble).set_requires_grad(true)});
    other_own_ = optimizer_of(options_, trained(*other_), rate());
    if (!options_.has("plain")) {
      optimizer_.emplace(run_, *net_, *own_);
      if (options_.has("two")) other_optimizer_.emplace(run_, *other_, *other_own_);
    }
    if (options_.has("group")) begin_sums();
    if (options_.has("noise")) say("noise " + std::to_string(torch::rand({1}).item<double>()));
    starling::DataLoader loader = run_.loader(points(options_), options_.number("batch", 8));
    starling::ProgramCheckpoint checkpoint = run_.checkpoint();
    if (options_.has("checkpoint")) restore(checkpoint, loader);
    torch::optim::StepLR schedule(*own_, 1, 0.5);
    while (loader.epoch() < options_.number("epochs", 2)) {
      epoch(loader, checkpoint);
      if (options_.has("schedule")) schedule.step();
      if (options_.has("uneven")) own_->param_groups().back().options().set_lr(0.001);
      if (options_.has("remake")) remake();
      if (options_.has("unfreeze")) {
        for (auto& p : net_->parameters()) p.set_requires_grad(true);
      }
    }
    const bool saves = !has_fault("no-save") && (!has_fault("rank-0-saves") || run_.rank() == 0);
    if (options_.has("checkpoint") && saves) checkpoint.save();
    if (options_.has("group")) end_sums();
    finish(loader);
  }

 private:
  bool has_fault(const std::string& name) const {
    return options_.has("fault") && options_.values.at("fault") == name;
  }

  // A loop whose module is not that of Run::replicate().
  void train_other_weights() {
    net_ = std::make_shared<Net>(options_, run_.rank());
    own_ = optimizer_of(options_, trained(*net_), rate());
    optimizer_.emplace(run_, *net_, *own_);
  }

  double rate() const { return options_.has("rate") ? run_.spec().optimizer.lr : 0.05; }

  std::vector<at::Tensor> trained(const Net& net) const {
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& p : net.parameters()) {
      if (p.requires_grad()) parameters.push_back(p);
    }
    return parameters;
  }

  // Starts three all-reduces of a million elements each.
  void begin_sums() {
    static const auto group = run_.process_group();
    for (int i = 0; i < 3; ++i) {
      sums_.push_back(torch::full({1 << 20}, (i + 1.0) * (run_.rank() + 1)));
      std::vector<at::Tensor> one = {sums_.back()};
      works_.push_back(group->allreduce(one));
    }
  }

  void end_sums() {
    for (const auto& work : works_) work->wait();
    works_.clear();
    const auto group = run_.process_group();
    std::string line = "sums of " + std::to_string(group->getSize()) + " ranks";
    for (const at::Tensor& sum : sums_)
      line +=
          " " + std::to_string(sum.min().item<int64_t>()) + " " + std::to_string(sum.max().item<int64_t>());
    say(line);
  }

  void remake() {
    const bool distributed = optimizer_.has_value();
    optimizer_.reset();
    own_ = optimizer_of(options_, trained(*net_), rate());
    if (distributed) optimizer_.emplace(run_, *net_, *own_);
  }

  void restore(starling::ProgramCheckpoint& checkpoint, starling::DataLoader& loader) {
    checkpoint.add(*optimizer_).add("loader", loader).add("losses", losses_).add("sum", loss_sum_);
    if (options_.has("two")) checkpoint.add("other", *other_optimizer_);
    if (options_.has("carry")) checkpoint.add_per_rank("carry", net_->carry);
    if (has_fault("twice")) checkpoint.add("sum", loss_sum_);
    const bool resumed = !has_fault("no-resume") && checkpoint.resume();
    if (has_fault("late-add")) checkpoint.add("late", loss_sum_);
    say((resumed ? "resumed after step " : "begun after step ") + std::to_string(checkpoint.steps()) +
        " position " + std::to_string(loader.position()) + " losses " + std::to_string(losses_));
  }

  void epoch(starling::DataLoader& loader, starling::ProgramCheckpoint& checkpoint) {
    int64_t batches = 0;
    for (auto& batch : loader) {
      if (options_.has("batches"))
        say("batch " + std::to_string(batch.data[0][0].item<double>()) + " samples " +
            std::to_string(batch.samples) + " of " + std::to_string(batch.all_samples));
      clear();
      const at::Tensor loss = loss_of(batch);
      loss.backward();
      losses_ += 1;
      loss_sum_ += loss.item<double>();
      if (++batches % options_.number("accumulate", 1) == 0) {
        if (options_.has("two")) update_other(batch);
        update();
      }
      while (options_.has("no-loader")) {
        clear();
        loss_of(batch).backward();
        update();
      }
      if (!options_.has("checkpoint") || has_fault("no-step")) continue;
      checkpoint.step();
      if (checkpoint.steps() == options_.number("save-at", -1)) checkpoint.save();
      if (checkpoint.steps() == options_.number("kill-at", -1) &&
          options_.number("kill-rank", run_.rank()) == run_.rank())
        ::raise(SIGKILL);
      if (checkpoint.steps() == options_.number("stop-at", -1)) run_.request_stop();
    }
  }

  at::Tensor loss_of(const starling::LoaderBatch& batch) {
    const std::vector<at::Tensor> inputs = batch.inputs(), targets = batch.targets();
    const at::Tensor input = inputs.size() > 1 ? inputs[0] + inputs[1] : inputs[0];
    const at::Tensor target = targets.size() > 1 ? targets[0] + targets[1] : targets[0];
    const at::Tensor likely = torch::log_softmax(net_->forward(input), 1);
    if (!options_.has("weigh")) return torch::nll_loss(likely, target);
    const at::Tensor weights = 1 + 4 * target.to(likely.scalar_type());
    const double weight = weights.sum().item<double>();
    if (optimizer_) optimizer_->weigh(weight);
    weight_ += weight;
    return -(likely.gather(1, target.unsqueeze(1)).squeeze(1) * weights).sum();
  }

  // The second network learns what the first one says.
  void update_other(starling::LoaderBatch& batch) {
    const at::Tensor said = net_->forward(batch.data).detach();
    torch::mse_loss(other_->forward(batch.data), said).backward();
    if (other_optimizer_) {
      other_optimizer_->step();
      other_optimizer_->zero_grad();
    } else {
      other_own_->step();
      other_own_->zero_grad();
    }
  }

  void update() {
    if (has_fault("own-step")) {
      own_->step();
      return;
    }
    if (optimizer_ && (options_.has("clip") || options_.has("clip-value"))) optimizer_->synchronize();
    if (options_.has("clip-value")) torch::nn::utils::clip_grad_value_(net_->parameters(), 0.01);
    if (options_.has("clip")) torch::nn::utils::clip_grad_norm_(net_->parameters(), 0.1);
    if (optimizer_) {
      optimizer_->step();
    } else {
      if (options_.has("weigh")) {
        for (const at::Tensor& p : net_->parameters()) p.mutable_grad().div_(weight_);
      }
      own_->step();
    }
    weight_ = 0;
    used_ = true;
    if (!options_.has("clear-late")) clear();
  }

  // Clears gradients that an update has used.
  void clear() {
    if (!std::exchange(used_, false)) return;
    optimizer_ ? optimizer_->zero_grad() : own_->zero_grad();
  }

  // Prints how far the outputs under InferenceMode and under autocast are from those of the plain model.
  void compare_modes() {
    const at::Tensor x = torch::linspace(-1, 1, 30, torch::kFloat).reshape({10, 3});
    const at::Tensor plain = net_->forward(x).detach();
    const auto apart = [&](const at::Tensor& y) {
      return std::to_string((y.to(torch::kFloat) - plain).abs().max().item<double>());
    };
    std::string line = "apart";
    {
      const c10::InferenceMode guard;
      line += " " + apart(net_->forward(x));
    }
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor y = net_->forward(x);
    y.sum().backward();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    say(line + " " + apart(y.detach()) + " " + c10::toString(y.scalar_type()));
  }

  void finish(const starling::DataLoader& loader) {
    if (options_.has("modes")) compare_modes();
    if (options_.has("rank-0-evaluates") && run_.rank() == 0)
      net_->forward(torch::zeros({4096, 3}, torch::kDouble));
    if (options_.has("shown")) {
      const auto shown = optimizer_->consensus();
      save("shown", *net_);
    }
    save("out", *net_);
    if (options_.has("two"))
      starling::save_model(*other_, options_.values.at("out") + "2." + std::to_string(run_.rank()));
    say("done rank " + std::to_string(run_.rank()) + " of " + std::to_string(run_.world_size()) + " epochs " +
        std::to_string(loader.epoch()) + " losses " + std::to_string(losses_));
    if (!optimizer_) return;
    say("replica " + std::to_string(run_.replica()) + " of " + std::to_string(run_.replicas()));
    for (const auto& [name, value] : optimizer_->statistics()) say(name + " = " + std::to_string(value));
  }

  void save(const std::string& option, const Net& net) {
    if (options_.has(option))
      starling::save_model(net, options_.values.at(option) + "." + std::to_string(run_.rank()));
  }

  starling::Run& run_;
  const Options& options_;
  std::shared_ptr<Net> net_, other_;
  std::unique_ptr<torch::optim::Optimizer> own_, other_own_;
  std::optional<starling::DistributedOptimizer> optimizer_, other_optimizer_;
  int64_t losses_ = 0;
  double loss_sum_ = 0, weight_ = 0;
  bool used_ = false;  // an update has used the gradients
  std::vector<at::Tensor> sums_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

// Trains in a program that is its own host. The words KEY=VALUE before "--" are the settings.
int train_joined(const std::vector<std::string>& words) {
  const auto split = std::find(words.begin(), words.end(), "--");
  starling::Settings settings;
  for (auto word = words.begin(); word != split; ++word)
    settings.set(word->substr(0, word->find('=')), word->substr(word->find('=') + 1));
  const Options options = options_of({split == words.end() ? split : split + 1, words.end()});
  try {
    starling::Run run = starling::join(settings);
    if (run.is_server()) {
      run.serve();
    } else {
      Program(run, options).train();
    }
  } catch (const starling::Error& error) {
    say(std::string("thrown: ") + error.what());
  }
  say("the program goes on");
  return 0;
}

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "joined") return train_joined({words.begin() + 1, words.end()});
  starling::Run run = starling::init(argc, argv);
  const Options options = options_of(run.arguments());
  Program program(run, options);
  options.has("fit") ? program.fit() : program.train();
}
