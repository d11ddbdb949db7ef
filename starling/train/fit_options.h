// FitOptions holds what a program asks of the training loop beside its configuration. The program can ask for
// metrics on the test data, a callback after every epoch, and its own optimizer, schedule and groups of
// parameters. It can also say how ranks shard the model.
//
//   starling::FitOptions options;
//   options.metric("accuracy", starling::top1);
//   options.on_epoch([](const auto& state, const auto& e) {
//     return e.loss < 1e-3 ? starling::kStop : starling::kContinue;
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "starling/data/nest.h"
#include "starling/nn/module_blocks.h"
#include "starling/nn/tensor_parallel/tensor_plan.h"
#include "starling/telemetry/event.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace starling {

// A mean, as the sum of what it is taken over and the weight of that sum. The training loop adds the sums and
// the weights of all batches and ranks, so the result is the mean over the whole data set.
struct Mean {
  // The sum of what the mean is taken over.
  double sum = 0;
  // The weight of the sum, for example the number of samples or of tokens.
  double weight = 0;
  // Returns the mean. NaN if the weight is 0.
  double value() const;
};

// A quantity that is measured on the test data.
struct Metric {
  // The name in events and results.
  std::string name;
  // Returns the mean over a batch, from its outputs and targets. One thread at a time calls it, without
  // gradients.
  std::function<Mean(const Tensors& outputs, const Tensors& targets)> of;
};

// Returns the share of samples whose class `target` [n] is the index of the largest of `output` [n, classes].
// Errors: c10::Error for other shapes.
Mean top1(const at::Tensor& output, const at::Tensor& target);

// What a callback answers.
enum class Verdict { kContinue, kStop };
inline constexpr Verdict kContinue = Verdict::kContinue;  // train on
inline constexpr Verdict kStop = Verdict::kStop;          // end the run after this step

// The result of an evaluation on the test data. Its loss is the mean over all samples.
using Evaluation = EvalDone;

// Where a run stands after an epoch.
struct EpochState {
  int64_t step = 0;       // number of updates so far
  double epoch = 0;       // number of epochs so far; not whole if the run ends within an epoch
  double train_loss = 0;  // mean of the last 20 steps
  // The model that was evaluated, in evaluation mode. Its tensors must not be changed. Under tensor
  // parallelism it is this rank's part, and all ranks of the replica must compute with it together.
  torch::nn::Module& model;
};

// Makes the optimizer of some parameters. The parameters are the replica's own, or fp32 copies of them in a
// run in bf16.
using OptimizerMaker =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// What differs for a group of parameters. A field without a value is that of the configuration.
struct GroupSettings {
  std::optional<double> lr = std::nullopt;            // learning rate
  std::optional<double> weight_decay = std::nullopt;  // weight decay
};

// Parameters whose names match a pattern.
struct ParameterGroup {
  std::string pattern;     // with * for any characters
  GroupSettings settings;  // of these parameters
};

// Returns how blocks are computed whose names match `pattern`: by forward(module, x). x is a tensor or
// Tensors, and the result is a nest of tensors. `module` is the block if the block has the class of that
// parameter. Otherwise `module` is the model.
template <typename Function>
BlockForward block_forward(std::string pattern, Function forward) {
  using Parameters = typename nest::Signature<Function>::Parameters;
  static_assert(std::tuple_size_v<Parameters> == 2,
                "the function of a block takes its module, or the model, and a tensor or starling::Tensors");
  using Module = std::tuple_element_t<0, Parameters>;
  using Input = std::tuple_element_t<1, Parameters>;
  static_assert(std::is_same_v<Input, at::Tensor> || std::is_same_v<Input, Tensors>,
                "the function of a block takes its module, or the model, and a tensor or starling::Tensors");
  return {std::move(pattern), [forward](const auto& block, const auto& model) -> BlockFunction {
            auto module = std::dynamic_pointer_cast<Module>(block);
            if (!module) module = std::dynamic_pointer_cast<Module>(model);
            if (!module) return {};
            return [module, forward](const Tensors& x) mutable -> Tensors {
              if constexpr (std::is_same_v<Input, Tensors>) {
                return tensors_of(forward(*module, x));
              } else {
                return tensors_of(forward(*module, x.at(0)));
              }
            };
          }};
}

// Returns how blocks are computed whose names match `pattern`: by the forward function of Class. Class is the
// class of their modules or of a holder of such a module.
template <typename Class>
BlockForward block_forward(std::string pattern) {
  if constexpr (requires { typename Class::ContainedType; }) {
    return block_forward<typename Class::ContainedType>(std::move(pattern));
  } else {
    return {std::move(pattern), [](const auto& block, const auto&) -> BlockFunction {
              auto module = std::dynamic_pointer_cast<Class>(block);
              if (!module) return {};
              return [module](const Tensors& x) { return call_forward(*module, x); };
            }};
  }
}

// Not thread-safe.
class FitOptions {
 public:
  // Adds a metric. `of` takes the output and the target of a batch, or nests of them (call_on_batch()). It
  // returns a Mean, or the mean over the batch's samples as a number or a tensor of one element. The metric
  // "accuracy" is shown in percent if it is between 0 and 1. Errors: ConfigError for an empty name, the name
  // "loss", or a name that was added before.
  template <typename Function>
  FitOptions& metric(std::string name, Function of) {
    return add({name, [name, of = std::move(of)](const Tensors& outputs, const Tensors& targets) mutable {
                  const std::string what = "the metric \"" + name + "\"";
                  if constexpr (std::is_same_v<std::remove_cvref_t<ResultOnBatch<Function>>, Mean>) {
                    return call_on_batch(of, outputs, targets, what);
                  } else {
                    return mean_of(call_on_batch(of, outputs, targets, what),
                                   targets.empty() ? outputs.at(0) : targets[0]);
                  }
                }});
  }

  // Calls `callback(const EpochState&, const Evaluation&)` after each epoch and at the end of the run, once
  // the test data are evaluated. It returns a Verdict or nothing. If the verdict of any rank is kStop, the
  // run ends after this step, and its result is complete. Without test data the evaluation has 0 samples, and
  // its loss is NaN.
  //
  // Every rank must have a callback and calls it with equal values. The other ranks wait for the slowest
  // callback, comm.timeout_s at most. A run with servers that continues after a loss is the exception. There,
  // only the rank that reports the run calls the callback. All ranks then stop some steps later, at the same
  // step.
  template <typename Callback>
  FitOptions& on_epoch(Callback callback) {
    if constexpr (std::is_void_v<std::invoke_result_t<Callback&, const EpochState&, const Evaluation&>>) {
      callback_ = [callback = std::move(callback)](const EpochState& state,
                                                   const Evaluation& evaluation) mutable {
        callback(state, evaluation);
        return kContinue;
      };
    } else {
      callback_ = std::move(callback);
    }
    return *this;
  }

  // Updates by an optimizer of libtorch's, or of the program's own, in place of that of the configuration.
  // `make` is called once on each rank, with the parameters that the rank holds. These are the parameters of
  // its stage of a pipeline, or its parts of sharded layers. The learning rate is that of the optimizer,
  // times schedule(). The exchange must be one of those that DistributedOptimizer can use
  // (docs/how-to/own-loop.md). With sharded layers, the optimizer must be one of libtorch's that update each
  // element by itself. Its state is a part of checkpoints.
  FitOptions& optimizer(OptimizerMaker make);
  // Gives the parameters whose names match `pattern` (* stands for any characters) settings of their own. If
  // several patterns match a name, the first one counts. The update is then that of torch::optim's SGD, Adam,
  // AdamW or Adagrad with the other settings of the configuration. Errors: Run::fit() throws ConfigError for
  // a pattern that matches no parameter.
  FitOptions& group(std::string pattern, GroupSettings settings);
  // Multiplies every learning rate by factor(it) in update number `it`, which counts from 0. This replaces
  // the schedule of the configuration. Each rank calls it, and it must return the same on every rank.
  FitOptions& schedule(std::function<double(int64_t it)> factor);
  // Sets optimizer.clip_value, the largest absolute value of an element of the gradient. Errors: ConfigError
  // unless `limit` is above 0.
  FitOptions& clip_value(double limit);

  // Sets train.accumulate, the number of parts in which a rank computes its samples of a step. Each update is
  // by the whole batch. Errors: ConfigError if `parts` is below 1.
  FitOptions& accumulate(int64_t parts);

  // Names the blocks of the model, at which --mesh stage=S and --shard parameters cut it, in the order in
  // which forward() computes them. A pattern is the name of a submodule, with * for any characters. It stands
  // for all submodules that match, in the order of their registration. A submodule of a match is a part of
  // it. The blocks together must be the forward function of the model, which fit() compares on some samples.
  // Without patterns, the blocks are the children of the torch::nn::Sequential. A module with one Sequential
  // or ModuleList among its children counts, too: the children of that list take its place.
  FitOptions& blocks(std::vector<std::string> patterns);
  // Says how blocks are computed whose names match `pattern`, by the class of their modules. It is not needed
  // for layers of libtorch's and for the children of a Sequential.
  template <typename Class>
  FitOptions& block(std::string pattern) {
    blocks_.forwards.push_back(block_forward<Class>(std::move(pattern)));
    return *this;
  }
  // Says how blocks are computed whose names match `pattern`, by a function (Module&, const at::Tensor&), or
  // (Module&, const Tensors&). The module is the block, or the whole model if that has the function's class.
  template <typename Function>
  FitOptions& block(std::string pattern, Function forward) {
    blocks_.forwards.push_back(block_forward(std::move(pattern), std::move(forward)));
    return *this;
  }
  // Says how --mesh tensor=T shards fully connected layers, torch::nn::Linear or starling::Linear:
  //
  //   options.tensor_plan({{"*.fc1", starling::kColumn}, {"*.fc2", starling::kRow}});
  //
  // A pattern is a layer's name with * for any characters, and the first one that matches counts. Only
  // elementwise functions without parameters may lie between a layer by columns and the next layer by rows.
  // fit() compares outputs and gradients of the sharded model and the whole one on some samples.
  FitOptions& tensor_plan(TensorPlan plan);

  // What blocks() and block() were given.
  const BlockNames& blocks() const { return blocks_; }
  // What tensor_plan() was given.
  const TensorPlan& tensor_plan() const { return tensor_plan_; }
  // What optimizer() was given. Empty if nothing was.
  const OptimizerMaker& optimizer() const { return optimizer_; }
  // What group() was given, in order.
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  // What schedule() was given. Empty if nothing was.
  const std::function<double(int64_t)>& schedule() const { return schedule_; }
  // What clip_value() was given.
  std::optional<double> clip_value() const { return clip_value_; }

  // What accumulate() was given.
  std::optional<int64_t> accumulate() const { return accumulate_; }

  // The metrics, in the order in which they were added.
  const std::vector<Metric>& metrics() const { return metrics_; }
  // The callback of on_epoch(). Empty if there is none.
  const std::function<Verdict(const EpochState&, const Evaluation&)>& callback() const { return callback_; }

 private:
  FitOptions& add(Metric metric);
  static Mean mean_of(double mean, const at::Tensor& target);
  static Mean mean_of(const at::Tensor& mean, const at::Tensor& target);

  OptimizerMaker optimizer_;
  std::vector<ParameterGroup> groups_;
  std::function<double(int64_t)> schedule_;
  std::optional<double> clip_value_;
  std::optional<int64_t> accumulate_;
  BlockNames blocks_;
  TensorPlan tensor_plan_;
  std::vector<Metric> metrics_;
  std::function<Verdict(const EpochState&, const Evaluation&)> callback_;
};

}  // namespace starling
