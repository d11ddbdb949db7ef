// Replica is one instance of the model, with its parameters and buffers by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/data/source.h"
#include "starling/nn/model.h"

namespace starling {

// A tensor with its name in the model.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// A model and its tensors.
struct Replica {
  Model model;
  // The parameters that require a gradient, in the order of the module. A shared parameter occurs once.
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

// Makes a model whose values are a function of `seed`, also if several threads make models at once.
// Afterwards torch's default generator has the state that it had before. `factory` must not call this
// function.
Model seeded_model(const ModelFactory& factory, uint64_t seed);

// Makes a replica of type `type`. If the type is bfloat16, floating-point buffers and the parameters of batch
// norm stay fp32. The model is seeded_model().
Replica make_replica(const ModelFactory& factory, at::ScalarType type, uint64_t seed);

// Stores 4-dimensional parameters (convolutions) in channels-last order.
void to_channels_last(Replica& replica);

// Returns the batch's inputs as `model` computes with them. Floating-point inputs are converted to `type`,
// except Model::exact_inputs, and images to channels-last order if requested. Integers stay as they are.
Tensors inputs_of(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last);

// The loss of a mini-batch.
struct BatchLoss {
  at::Tensor sum;         // weighted: the sum. Otherwise the mean over the samples.
  double weight = 0;      // weighted: what the sum is divided by. Otherwise the number of samples.
  bool weighted = false;  // ModelLoss::weighted()

  // Returns the mean loss of this batch alone.
  at::Tensor mean() const;
};

// Runs forward: returns the loss of `model` over `batch`, computed in this type and memory order. Tells the
// model which samples it sees.
BatchLoss batch_loss(const Model& model, const Batch& batch, at::ScalarType type, bool channels_last);

// Returns the factor by which a rank multiplies its loss of a step. The mean of the ranks' losses is then the
// loss of the whole step. For a loss without weights the factor is 1, because the loss is the mean of the
// rank's batch. If ranks may have unequal shares, all_samples is the number of samples of all p ranks of the
// group. The factor is then n p / all_samples, where n is this rank's samples. For a weighted loss it is
// p / W, where W is the weight of all p ranks; the call is then collective. `group` may be null: this rank
// alone.
double share_factor(const BatchLoss& loss, Group* group, int64_t all_samples = 0);

// Returns the number of elements of all parameters.
int64_t parameter_count(const Replica& replica);

// Throws Error(kNumeric) for a loss that is not finite. The message names the rank, the step and the first
// parameter that is not finite.
[[noreturn]] void refuse_loss(const Replica& replica, int rank, int64_t step, double loss);

// Throws Error(kNumeric) for a loss that is not finite. It does not read the parameters, which may be sharded
// over the ranks.
[[noreturn]] void refuse_loss(int rank, int64_t step, double loss);

// Returns the name of the first parameter whose tensor is not finite. gradient_of: returns the tensor of
// parameter `i`. Empty if all are finite.
std::string first_not_finite(const Replica& replica, const std::function<at::Tensor(size_t i)>& gradient_of);

// Throws Error(kNumeric) for a gradient that is not finite. The message names the rank and the step. what:
// whose gradient it is, for example "the gradient of fc1.weight".
[[noreturn]] void refuse_gradient(int rank, int64_t step, const std::string& what);

// Throws Error(kNumeric), which names the rank, the parameter and the step, if a trained parameter that is to
// be saved is not finite. An average of finite weights can overflow after the last loss was computed.
void require_finite(const std::map<std::string, at::Tensor>& parameters, int rank, int64_t step);

// Returns the tensor `name` of a checkpoint. Errors: Error(kCheckpoint) if the tensor is missing or its shape
// differs from that of `like`.
const at::Tensor& fitting(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                          const at::Tensor& like);

}  // namespace starling
