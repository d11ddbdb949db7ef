// Model, the factory that makes models, and the zoo. A factory makes models (design decision 1), because
// verify, replicas in threads and ranks that continue after a loss need fresh models. A plain libtorch module
// cannot be cloned.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// Tensors in the order in which functions take them.
using Tensors = std::vector<at::Tensor>;

// A loss that is a mean with weights, for example over the tokens that are no padding:
//
//   return starling::WeightedLoss{(mask * errors).sum(), mask.sum()};
//
// The loss of a step is then the sum over all ranks divided by the weight of all ranks, as one process
// computes it. If the weight is 0, the loss is the sum.
struct WeightedLoss {
  // `sum` is a scalar with a gradient. The weight is a scalar without one. Errors: c10::Error if the weight
  // is negative or not finite.
  WeightedLoss(at::Tensor sum, double weight);
  // Takes the weight from an integer.
  template <typename Integer>
    requires std::is_integral_v<Integer>
  WeightedLoss(at::Tensor sum, Integer weight) : WeightedLoss(std::move(sum), static_cast<double>(weight)) {}
  // Takes the weight from a tensor of one element.
  WeightedLoss(at::Tensor sum, const at::Tensor& weight);
  // The sum over the batch.
  at::Tensor sum;
  // What the sum is divided by.
  double weight = 0;
  // Returns sum / weight, or the sum if the weight is 0.
  at::Tensor mean() const;
};

// The forward function of a model. A function object converts to it if it takes one tensor, or all inputs of
// a batch as Tensors. It returns a tensor or Tensors.
class ModelForward {
 public:
  ModelForward() = default;
  // There is no function.
  ModelForward(std::nullptr_t) {}
  // Wraps a function object. A generic lambda must take one tensor.
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, ModelForward> &&
             (std::is_invocable_v<F&, const at::Tensor&> || std::is_invocable_v<F&, const Tensors&>))
  ModelForward(F forward) {
    if constexpr (std::is_invocable_v<F&, const at::Tensor&>) {
      forward_ = [forward = std::move(forward)](const Tensors& inputs) mutable {
        return outputs_of(forward(only(inputs)));
      };
    } else {
      forward_ = [forward = std::move(forward)](const Tensors& inputs) mutable {
        return outputs_of(forward(inputs));
      };
    }
  }
  // Returns the output for one input. Errors: ConfigError if the model has several outputs.
  at::Tensor operator()(const at::Tensor& input) const;
  // Returns the outputs for all inputs of a batch. Errors: ConfigError if the model takes one tensor and the
  // batch has several.
  Tensors operator()(const Tensors& inputs) const { return forward_(inputs); }
  // Whether there is a function.
  explicit operator bool() const { return static_cast<bool>(forward_); }

 private:
  static const at::Tensor& only(const Tensors& inputs);
  static Tensors outputs_of(at::Tensor output) { return {std::move(output)}; }
  static Tensors outputs_of(Tensors outputs) { return outputs; }

  std::function<Tensors(const Tensors&)> forward_;
};

// The loss of a model. A function object converts to it if it takes (output, target), or all outputs and all
// targets of a batch as (Tensors, Tensors). It returns a scalar, the mean over the samples, or a
// WeightedLoss.
class ModelLoss {
 public:
  ModelLoss() = default;
  // There is no function.
  ModelLoss(std::nullptr_t) {}
  // Wraps a function object. A generic lambda must take (output, target).
  template <typename F>
    requires(!std::is_base_of_v<ModelLoss, std::remove_cvref_t<F>> &&
             (std::is_invocable_v<F&, const at::Tensor&, const at::Tensor&> ||
              std::is_invocable_v<F&, const Tensors&, const Tensors&>))
  ModelLoss(F loss) {
    if constexpr (std::is_pointer_v<F> || requires { typename F::result_type; }) {
      if (!loss) return;
    }
    if constexpr (std::is_invocable_v<F&, const at::Tensor&, const at::Tensor&>) {
      using Result = std::invoke_result_t<F&, const at::Tensor&, const at::Tensor&>;
      weighted_ = std::is_same_v<Result, WeightedLoss>;
      loss_ = [loss = std::move(loss)](const Tensors& outputs, const Tensors& targets) mutable {
        check_pair(outputs, targets);
        return value_of(loss(outputs[0], targets[0]));
      };
    } else {
      using Result = std::invoke_result_t<F&, const Tensors&, const Tensors&>;
      weighted_ = std::is_same_v<Result, WeightedLoss>;
      loss_ = [loss = std::move(loss)](const Tensors& outputs, const Tensors& targets) mutable {
        return value_of(loss(outputs, targets));
      };
    }
  }
  // Wraps a function of all outputs and targets. weighted: whether its weights count. Otherwise `sum` is the
  // mean over the samples.
  ModelLoss(std::function<WeightedLoss(const Tensors& outputs, const Tensors& targets)> loss, bool weighted)
      : loss_(std::move(loss)), weighted_(weighted) {}

  // Returns the mean loss of one output and one target.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target) const;
  // Returns the loss of a batch. If the loss has no weights, `sum` is the mean over the samples and `weight`
  // is 1. Errors: ConfigError if the loss takes another number of tensors.
  WeightedLoss of(const Tensors& outputs, const Tensors& targets) const { return loss_(outputs, targets); }
  // Whether the loss returns a WeightedLoss.
  bool weighted() const { return weighted_; }
  // Whether there is a function.
  explicit operator bool() const { return static_cast<bool>(loss_); }

 private:
  static void check_pair(const Tensors& outputs, const Tensors& targets);
  static WeightedLoss value_of(at::Tensor mean) { return {std::move(mean), 1.0}; }
  static WeightedLoss value_of(WeightedLoss loss) { return loss; }

  std::function<WeightedLoss(const Tensors&, const Tensors&)> loss_;
  bool weighted_ = false;
};

// One block of a model that can be cut into stages (nn/blocks.h). `forward` is a function of what the block
// before it returned. `modules` lists the modules whose parameters and buffers it uses. A block usually takes
// and returns one tensor; it passes more where a skip connection spans the cut. It must not change its input
// in place.
struct Block {
  // The name in messages and in the list of blocks.
  std::string name;
  // The modules of the block. The model owns them, too.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  // Computes the block's output. One thread at a time may call it.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward;
};

// The keys of the samples of the current mini-batch. The trainer sets them before each forward pass in
// training.
struct SampleKeys {
  at::Tensor keys;  // [n] int64, Batch::keys of the rows
};

// A module with a forward function from an input batch to an output (logits), and a loss. Both may take and
// return several tensors. Every model of the zoo is a Model, and a user's plain torch::nn::Module is wrapped
// into one.
struct Model {
  // Owns the parameters and buffers.
  std::shared_ptr<torch::nn::Module> module;
  // Computes the output of an input batch. One thread at a time may call it.
  ModelForward forward;
  // The loss of the batch. If it is empty, Run::fit() uses its own argument, or else cross_entropy().
  ModelLoss loss;
  // The computation of `forward`, in blocks that stages can divide among themselves. Empty if the model
  // cannot be cut.
  std::vector<Block> blocks = {};
  // The keys from which the model draws its random numbers (keyed_dropout.h). Null if the model draws none.
  std::shared_ptr<SampleKeys> samples = {};
  // The numbers of the inputs whose floating-point type the model wants to keep. All other floating-point
  // inputs are converted to the type in which the run computes. Integers always stay integers.
  std::vector<size_t> exact_inputs = {};
  // By name: the tensors of `module` that it carries from batch to batch, neither parameters nor buffers.
  // Each rank has its own. Checkpoints keep them, and they may change their shapes.
  std::map<std::string, at::Tensor*> carried = {};
};

// A function that makes a fresh fp32 model on the CPU. It draws the initial parameters from torch's default
// generator. Call torch::manual_seed first.
using ModelFactory = std::function<Model()>;

// The shapes that the data prescribes for a model's input and output.
struct ModelShape {
  std::vector<int64_t> input_shape;  // {1, 28, 28}, {3, 32, 32}, {tokens}
  int64_t classes = 10;              // or size of the vocabulary
  bool text = false;                 // true: the input is tokens; false: the input is images
};

// Returns the input and output shape that a model of the zoo is published for:
// - mlp: the first and the last of model.widths
// - lenet5: the images and classes of MNIST
// - gpt: model.tokens and the vocabulary of GPT-2
// - llama: model.tokens and the vocabulary of Llama 2
// - all other models: 224×224 pixels and 1000 classes, as in ImageNet
ModelShape usual_shape(const ModelSpec& spec);

// What a model needs from the run that trains it.
struct ModelHooks {
  // Adds a tensor over all replicas, in place (batch_norm.h). Only model.batch_norm = sync needs it.
  std::function<void(at::Tensor&)> all_reduce_sum;
};

// Returns the factory of a model of the zoo. If model.batch_norm is sync and there is no hook, the statistics
// are those of the process alone, which is right for a single process. Errors: ConfigError for an unknown
// model (the message suggests a similar name) or for a model that does not fit the data's shape.
ModelFactory zoo_model(const ModelSpec& spec, const ModelShape& shape, const ModelHooks& hooks = {});

// Returns the mean cross-entropy of logits [n, c] with classes [n], or of logits [n, t, c] with tokens [n,
// t].
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target);

// One model of the zoo.
struct ZooEntry {
  std::string name;  // the word of model.name
  std::string what;  // one line
};
// Returns all models of the zoo.
const std::vector<ZooEntry>& zoo();

}  // namespace starling
