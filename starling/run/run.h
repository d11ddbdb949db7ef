// The library's face. A user's own program trains like `starling train`, with the same configuration.
//
//   int main(int argc, char** argv) {
//     starling::Run run = starling::init(argc, argv);
//     run.fit(starling::model<Net>(), starling::cross_entropy, starling::tensor_source(x, y));
//   }
//
// The program does not mention ranks. Started alone, it is one rank. With `-n 4`, init() starts four copies
// of it. Under torchrun and srun each process finds its rank in the environment.
//
// The command line holds the flags of `starling train` and, after "--", the program's own arguments:
//
//   ./app --epochs 20 -n 4 -- --width 64
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/pimpl.h>

#include "starling/data/data_sets.h"
#include "starling/data/nest.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"
#include "starling/run/loop/data_loader.h"
#include "starling/run/loop/program_checkpoint.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"
#include "starling/train/fit_options.h"

namespace c10d {
class ProcessGroup;
}

namespace starling {

// The loss of a batch. A function converts to a Loss if it takes the output of the model and the target of
// the batch. It may also take several of them, or nests of them (call_on_batch() in starling/data/nest.h).
// The function returns
//
//   at::Tensor     the mean over the samples, a scalar;
//   WeightedLoss   a sum and a weight, for a mean over tokens or another mean with weights.
//
// If an output and a target have different floating-point types, the loss receives all of them in the widest
// type.
class Loss : public ModelLoss {
 public:
  using ModelLoss::ModelLoss;
  Loss() = default;
  // Takes the loss of a model.
  Loss(ModelLoss loss) : ModelLoss(std::move(loss)) {}
  // Wraps a function. A generic lambda takes (output, target).
  template <typename F>
    requires(nest::HasSignature<F> && !std::is_base_of_v<ModelLoss, F> &&
             !std::is_invocable_v<F&, const at::Tensor&, const at::Tensor&> &&
             !std::is_invocable_v<F&, const Tensors&, const Tensors&>)
  Loss(F loss) : ModelLoss(wrapped(std::move(loss))) {}

 private:
  template <typename F>
  static ModelLoss wrapped(F loss) {
    using Result = std::remove_cvref_t<ResultOnBatch<F>>;
    static_assert(std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, WeightedLoss>,
                  "a loss returns an at::Tensor, the mean over the samples, or a starling::WeightedLoss");
    return {[loss = std::move(loss)](const Tensors& outputs, const Tensors& targets) mutable -> WeightedLoss {
              if constexpr (std::is_same_v<Result, WeightedLoss>) {
                return call_on_batch(loss, outputs, targets, "the loss");
              } else {
                return {call_on_batch(loss, outputs, targets, "the loss"), 1.0};
              }
            },
            std::is_same_v<Result, WeightedLoss>};
  }
};

// Returns a module as a model. The module's forward function takes the inputs of a batch (call_forward() in
// starling/data/nest.h). It returns a tensor or a nest of tensors. If the class has a member
//
//   static constexpr int kExactInputs[] = {1};
//
// the inputs of these numbers, from 0, keep their floating-point type. All other floating-point inputs are
// converted to the type in which the run computes. Integers always stay integers.
//
// A class may carry tensors from batch to batch, such as the hidden state of a recurrent network. Such a
// class names them in a member function, so that checkpoints keep them:
//
//   std::map<std::string, at::Tensor*> carried() { return {{"hidden", &hidden}}; }
//
// Each rank carries its own. An evaluation runs the same module, so forward() changes them in training only.
template <typename Net>
Model model_of_module(std::shared_ptr<Net> net) {
  Model made{net, [net](const Tensors& inputs) { return call_forward(*net, inputs); }, nullptr};
  if constexpr (requires { Net::kExactInputs; }) {
    for (const auto input : Net::kExactInputs) made.exact_inputs.push_back(static_cast<size_t>(input));
  }
  if constexpr (requires {
                  { net->carried() } -> std::convertible_to<std::map<std::string, at::Tensor*>>;
                }) {
    made.carried = net->carried();
  }
  return made;
}

// Makes a fresh module with its forward function. It is called once per replica.
using ModuleFactory = std::function<Model()>;

// Returns the factory of a module class that has a forward function (model_of_module()). `arguments` go to
// its constructor.
template <typename Net, typename... Arguments>
ModuleFactory model(Arguments... arguments) {
  return [=] { return model_of_module(std::make_shared<Net>(arguments...)); };
}

// The result of Run::fit<Net>().
template <typename Net>
struct Trained {
  // The trained module, with equal values on every rank and in evaluation mode. It owns its memory. Its
  // floating-point tensors are fp64 if the run computes in fp64, and fp32 otherwise.
  std::shared_ptr<Net> model;
  // The summary, complete on rank 0.
  RunResult result;
};

// A value of a configuration key, written in code.
using Setting = std::variant<bool, int64_t, double, std::string>;

// Settings of a program, by configuration key: {{"optimizer.lr", 0.01}, {"train.epochs", 20}}.
class Settings {
 public:
  Settings() = default;
  // One key with its value: a bool, an integer, a floating-point number or a text.
  struct Entry {
    // Makes an entry. A number of another type than the key's is converted if its text allows it.
    template <typename Value>
    Entry(std::string_view name, Value&& of) : key(name), value(setting_of(std::forward<Value>(of))) {}
    // The configuration key, for example "optimizer.lr".
    std::string key;
    // Its value.
    Setting value;

   private:
    template <typename Value>
    static Setting setting_of(Value&& of) {
      using Plain = std::decay_t<Value>;
      if constexpr (std::is_same_v<Plain, bool>)
        return of;
      else if constexpr (std::is_integral_v<Plain>)
        return static_cast<int64_t>(of);
      else if constexpr (std::is_floating_point_v<Plain>)
        return static_cast<double>(of);
      else
        return std::string(std::forward<Value>(of));
    }
  };
  // Makes settings of entries, in order.
  Settings(std::initializer_list<Entry> entries) : entries_(entries) {}
  // Adds a setting. A later one of the same key replaces an earlier one.
  template <typename Value>
  Settings& set(std::string_view key, Value&& value) {
    entries_.emplace_back(key, std::forward<Value>(value));
    return *this;
  }
  // The settings, in order.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

struct RunState;

// One rank of a run. Not thread-safe.
class Run {
 public:
  ~Run();
  Run(Run&&) noexcept;

  // The configuration of the run. A loop of the program's own decides its learning rate and its length, so a
  // DistributedOptimizer refuses flags such as --lr. It does not refuse them after a call of spec(), because
  // the program may then obey them.
  const RunSpec& spec() const;
  // The arguments of the command line that follow "--", in order.
  const std::vector<std::string>& arguments() const;
  // The number of this rank, from 0.
  int rank() const;
  // Returns the device on which fit() computes (train.device): the CPU, a GPU, or a device that the program
  // has added to libtorch. Ranks of one host use its devices in turn. Errors: ConfigError if the host has no
  // usable device of that kind.
  at::Device device() const;
  // Returns true if this process is a server and no rank. Only the Run of join() may be one.
  bool is_server() const;
  // Serves until the workers have finished. fit() calls it in a server, and returns an empty result;
  // fit<Net>() returns no model. Errors: Error if this process is no server; those of fit().
  void serve();
  // Opens the data that data.source names. It is for programs whose command line chooses the data
  // (Extensions::take_data), which call it before fit(); in other programs data.source has its default.
  // Faults: as for fit().
  DataSets data() const;
  // Asks the run to stop after the step. All ranks then stop, and fit() ends as after SIGTERM. This is the
  // only function that any thread may call, also during fit().
  void request_stop();

  // Trains as configured, evaluates on `test` unless it is null, and saves the weights where --save says.
  // Returns the summary, which is complete on rank 0. Collective over the ranks. A fault (starling::Error)
  // goes to the launcher and ends this process with a message and the exit status of its kind. After
  // throw_faults() it is thrown instead. With --dry-run, fit() makes the model, prints what it would train
  // and ends the process with status 0. A run that SIGTERM or Ctrl-C interrupts saves its state and ends the
  // process with status 128 + signal. After throw_faults(), fit() returns the result instead, and
  // RunResult::interrupted is true.
  //
  // If the factory sets Model::loss, `loss` must be null. If neither is set, the loss is cross_entropy().
  // All ranks must pass the same data. `options` adds metrics and a callback after every epoch.
  RunResult fit(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                std::shared_ptr<const Source> test = nullptr, const FitOptions& options = {});
  // Trains like the other fit(), and also returns the trained module on every rank. `make` returns a fresh
  // Net: a std::shared_ptr<Net>, or a torch::nn::ModuleHolder<Net>. Its forward function takes one tensor or
  // several (model_of_module()).
  template <typename Net, typename Make>
    requires std::invocable<const Make&>
  Trained<Net> fit(const Make& make, const Loss& loss, std::shared_ptr<const Source> train,
                   std::shared_ptr<const Source> test = nullptr, const FitOptions& options = {}) {
    const ModuleFactory factory = [make] {
      std::shared_ptr<Net> net;
      if constexpr (std::is_convertible_v<decltype(make()), std::shared_ptr<Net>>) {
        net = make();
      } else {
        net = make().ptr();
      }
      return model_of_module(std::move(net));
    };
    auto [module, result] = fit_module(factory, loss, std::move(train), std::move(test), options);
    return {std::dynamic_pointer_cast<Net>(module), std::move(result)};
  }
  // Makes fit() throw faults instead of ending the process.
  void throw_faults();

  // The four members below are for a program that has a training loop of its own
  // (run/loop/distributed_optimizer.h).

  // Gives every rank the parameters and buffers of rank 0, or those of --init if that is given, and returns
  // the module. Collective. Errors: those of --init, and ConfigError if the modules of two ranks differ in a
  // name or a shape.
  //
  // With --mesh tensor=T, T ranks compute each batch together, and each of them then keeps its parts of the
  // layers. `plan` names torch::nn::Linear layers and says how each is sharded:
  //
  //   auto net = run.replicate(std::make_shared<Net>(), {{"fc1", starling::kColumn}, {"fc2",
  //   starling::kRow}});
  //
  // Layers of Starling's own are sharded without a plan, and all other layers stay whole. Make the optimizer
  // afterwards, because it updates the parts. The passes of the module are collective over the T ranks, and
  // the run must outlive them. Unlike fit(), the loop does not compare the sharded module with the whole one.
  // Modules that share layers must be one module. Without --mesh tensor=T the plan is not read. Errors:
  // ConfigError for a pattern that matches no layer, and for a module with layers that are sharded already.
  template <typename Net>
  std::shared_ptr<Net> replicate(std::shared_ptr<Net> net, const TensorPlan& plan = {}) {
    make_equal(net, plan);
    return net;
  }
  // As above, for a module holder, such as one of TORCH_MODULE.
  template <typename Holder>
    requires std::is_base_of_v<torch::nn::ModuleHolder<typename Holder::ContainedType>, Holder>
  Holder replicate(Holder net, const TensorPlan& plan = {}) {
    make_equal(net.ptr(), plan);
    return net;
  }
  // Returns the batches of this rank. A step of all ranks together takes `batch` samples, so that the loop
  // learns the same on any number of ranks. The order of the samples is that of data.order (shuffled). Under
  // an exchange whose samples belong to one rank each (ADMM, parallel SGD), or with data.partition, each rank
  // sees its own samples only. Collective. Errors: ConfigError if the batch has fewer samples than there are
  // replicas, or if the ranks have different data.
  DataLoader loader(std::shared_ptr<const Source> source, int64_t batch);
  // Returns the checkpoint of the program's own loop. Errors: those of the run folder.
  ProgramCheckpoint checkpoint();
  // Returns the mean of `value` over the ranks, for example of a loss that decides when to stop. Collective.
  double mean(double value);
  // Returns true once the ranks have agreed to end the run, after a signal or request_stop(). All ranks see
  // it after the same step. A DataLoader that is asked for a batch then ends the process with status 128 +
  // signal. After throw_faults(), it throws Error (kInterrupted) instead.
  bool stopping() const;
  // The number of ranks.
  int world_size() const;
  // The number of replicas: that of the ranks, divided by the tensor axis (--mesh tensor=T). A loop that
  // reads its data without loader() divides them by replica, because the ranks of a replica compute each
  // batch together.
  int replicas() const;
  // The number of this rank's replica, from 0.
  int replica() const;

  // Returns the ranks of the run as a process group of libtorch's (c10d), for collectives of the program's
  // own on tensors in host memory. Its operations have an order of their own, so they may be pending while
  // fit() or a DistributedOptimizer communicates. Every call returns the same group. The first call is
  // collective. To use the group, include <torch/csrc/distributed/c10d/ProcessGroup.hpp>. Wait for all
  // operations before the Run ends: the group is then shut down, and its operations throw. With --dry-run it
  // has one rank. A fit() that goes on after the loss of a rank (train.on_failure "continue") does not change
  // the group: its operations fail from then on. Errors: as for fit(); Error if this process is a server.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group();

 private:
  friend class LoopAccess;
  friend Run init(int argc, const char* const* argv, const Settings& settings, const Extensions& extensions);
  friend Run join(const Settings& settings, const Extensions& extensions);
  explicit Run(std::unique_ptr<RunState> state);
  std::pair<std::shared_ptr<torch::nn::Module>, RunResult> fit_module(const ModuleFactory& module,
                                                                      const Loss& loss,
                                                                      std::shared_ptr<const Source> train,
                                                                      std::shared_ptr<const Source> test,
                                                                      const FitOptions& options);
  RunResult train(const ModuleFactory& module, const Loss& loss, std::shared_ptr<const Source> train,
                  std::shared_ptr<const Source> test, const FitOptions& options,
                  std::map<std::string, at::Tensor>* trained);

  void make_equal(const std::shared_ptr<torch::nn::Module>& module, const TensorPlan& plan);

  std::unique_ptr<RunState> state_;
};

// Reads -c FILE, --set key=value and the flags of `starling train` from the command line and joins the job.
// Arguments after "--" are left to the program (Run::arguments()).
//
// In a process that starts the ranks (-n N) it does not return: the process exits with their status. In a
// server process it does not return either: the process exits when the workers have finished. --help and
// --version print their text and end the process with status 0. A wrong configuration or an unknown flag ends
// the process with a message and status 2. A flag for the model or the data of `starling train`, such as
// --data, also ends it with a message and status 2.
//
// `settings` are the program's own values of configuration keys. Files, --set and flags override them. An
// unknown key or a value that the key cannot have ends the process with status 2.
Run init(int argc, const char* const* argv, const Settings& settings = {});
// Like init() above, for a program that adds exchanges, codecs, collectives or data sources
// (spec/extensions.h).
Run init(int argc, const char* const* argv, const Settings& settings, const Extensions& extensions);

}  // namespace starling
