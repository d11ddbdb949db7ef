#include "starling/commands/retraining.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/data/loader.h"
#include "starling/optim/schedule.h"
#include "starling/optim/update_rule.h"

namespace starling {
namespace {

// A tensor with its states.
struct Updated {
  RetrainedTensor tensor;
  std::vector<at::Tensor> states;
};

void update(const UpdateRule& rule, const Updated& updated, double lr, int64_t step) {
  const at::Tensor gradient = updated.tensor.gradient().contiguous();
  const float* from = gradient.const_data_ptr<float>();
  std::vector<float*> states;
  states.reserve(updated.states.size());
  for (const at::Tensor& state : updated.states) states.push_back(state.data_ptr<float>());
  const std::vector<const float*> before(states.begin(), states.end());
  UpdateArgs<float, float> args;
  args.gradients = &from;
  args.parameter = args.parameter_out = updated.tensor.value.data_ptr<float>();
  args.state = before.data();
  args.state_out = states.data();
  args.count = static_cast<size_t>(updated.tensor.value.numel());
  rule.apply(args, lr, step);
}

}  // namespace

bool retrain(Replica& replica, const std::shared_ptr<const Source>& train, const Retraining& retraining) {
  if (retraining.epochs <= 0) return true;
  OptimizerSpec adam;
  adam.name = "adam";
  const UpdateRule rule = make_update_rule(adam);
  std::vector<Updated> tensors;
  for (const RetrainedTensor& tensor : retraining.tensors) {
    tensors.push_back({tensor, {}});
    for (int s = 0; s < rule.state_count(); ++s)
      tensors.back().states.push_back(at::zeros_like(tensor.value.detach()));
  }
  LoaderOptions options;
  options.seed = retraining.seed;
  options.global_batch = retraining.batch;
  const std::unique_ptr<Loader> loader = make_loader(train, options);
  ScheduleSpec schedule;
  schedule.name = "cosine";
  const ScheduleLength length{
      .total_steps = std::llround(retraining.epochs * static_cast<double>(loader->steps_per_epoch())),
      .steps_per_epoch = loader->steps_per_epoch(),
      .global_batch = retraining.batch};
  replica.model.module->train();
  for (int64_t step = 0; step < length.total_steps; ++step) {
    const double done = static_cast<double>(step) / static_cast<double>(length.total_steps);
    if (retraining.before_step && !retraining.before_step(done)) return false;
    replica.model.module->zero_grad();
    const at::Tensor loss = batch_loss(replica.model, loader->next(), at::kFloat, false).mean();
    if (const auto value = loss.item<double>(); !std::isfinite(value))
      throw Error(
          ErrorCode::kNumeric,
          fmt::format("the loss is {} at step {} of the training; give a lower --retrain-lr than {:g}", value,
                      step + 1, retraining.lr));
    loss.backward();
    const at::NoGradGuard no_grad;
    const double lr = learning_rate(retraining.lr, schedule, length, step);
    for (const Updated& tensor : tensors) update(rule, tensor, lr, step + 1);
    if (retraining.after_update) retraining.after_update();
  }
  replica.model.module->zero_grad();
  return true;
}

}  // namespace starling
