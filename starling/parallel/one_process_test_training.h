// The reference of the tests of strategies: one process trains on the whole batch in fp64 by the formulas of
// optim/update_rule_reference.h.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "starling/optim/update_rule_reference.h"
#include "starling/parallel/replica/replica.h"

namespace starling {

// Leaves the gradient of the batch's mean loss in the parameters.
using Backward = std::function<void(const Model&, const at::Tensor& input, const at::Tensor& target)>;

// Computes the gradient of the whole batch in one backward pass.
inline void whole_batch(const Model& model, const at::Tensor& input, const at::Tensor& target) {
  model.loss(model.forward(input), target).backward();
}

// Settings of the reference.
struct OneProcess {
  double lr = 0.05;
  double clip = 0;  // the largest norm of the gradients; 0: no limit
  uint64_t seed = 0;
  double clip_value = 0;  // the largest magnitude of an element of the gradients; 0: no limit
  // Receives the averaged weights by name, if the optimizer has ema_decay. May be null.
  std::map<std::string, at::Tensor>* averages = nullptr;
};

// Returns the parameters by name after steps 1 … `steps` on batch_of(step).
inline std::map<std::string, at::Tensor> train_one_process(const ModelFactory& factory,
                                                           const std::function<Batch(int64_t step)>& batch_of,
                                                           const OptimizerSpec& spec, int steps,
                                                           const OneProcess& options,
                                                           const Backward& backward = whole_batch) {
  Replica replica = make_replica(factory, at::kDouble, options.seed);
  const int states_each = make_update_rule(spec).state_count();
  std::map<std::string, std::vector<at::Tensor>> states;
  for (int64_t step = 1; step <= steps; ++step) {
    const Batch batch = batch_of(step);
    const at::Tensor input = batch.input.is_floating_point() ? batch.input.to(at::kDouble) : batch.input;
    for (NamedTensor& p : replica.parameters) p.tensor.mutable_grad().reset();
    backward(replica.model, input, batch.target);
    for (NamedTensor& p : replica.parameters) {
      if (options.clip_value > 0) p.tensor.mutable_grad().clamp_(-options.clip_value, options.clip_value);
    }
    double squares = 0;
    for (NamedTensor& p : replica.parameters) squares += p.tensor.grad().square().sum().item<double>();
    const double norm = std::sqrt(squares);
    for (NamedTensor& p : replica.parameters) {
      auto& own = states[p.name];
      while (static_cast<int>(own.size()) < states_each) own.push_back(at::zeros_like(p.tensor.detach()));
      const at::Tensor gradient = p.tensor.grad().contiguous();
      const double* gradients[] = {gradient.data_ptr<double>()};
      std::vector<double*> pointers;
      for (const at::Tensor& s : own) pointers.push_back(s.data_ptr<double>());
      UpdateArgs<double, double> args;
      args.gradients = gradients;
      args.gradient_scale = options.clip > 0 && norm > options.clip ? options.clip / (norm + 1e-6) : 1;
      args.parameter = args.parameter_out = p.tensor.data_ptr<double>();
      args.state = args.state_out = pointers.data();
      args.count = static_cast<size_t>(p.tensor.numel());
      reference_update(args, spec, options.lr, step, p.tensor.dim() <= 1);
    }
  }
  std::map<std::string, at::Tensor> result;
  for (const NamedTensor& p : replica.parameters) result[p.name] = p.tensor.detach().clone();
  if (options.averages != nullptr && spec.ema_decay > 0) {
    for (const auto& [name, own] : states) (*options.averages)[name] = own.back();
  }
  return result;
}

}  // namespace starling
