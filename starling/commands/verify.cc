#include "starling/commands/verify.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/optim/schedule.h"
#include "starling/optim/update_rule_reference.h"
#include "starling/run/choice/share_measurement.h"
#include "starling/run/run_device.h"
#include "starling/run/strategies.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/read_keys.h"
#include "starling/spec/strategy_table.h"
#include "starling/train/trainer.h"

namespace starling {
namespace {

void refuse_what_one_process_cannot_do(const RunSpec& spec, const Replica& replica, int64_t replicas) {
  const std::string& exchange = spec.exchange.name;
  if (!equals_one_process(spec)) {
    if (spec.train.threads_mode == ThreadsMode::kHogwild)
      throw ConfigError(
          "train.threads_mode",
          "threads without locks read parameters while other threads update them: no single "
          "process makes the same update; verify with --threads-mode op and an exchange such as "
          "all-reduce");
    throw ConfigError("exchange.name",
                      exchange +
                          " is not synchronous SGD: no single process makes the same update; "
                          "verify an exchange such as all-reduce or central");
  }
  const bool normalizes =
      std::any_of(replica.buffers.begin(), replica.buffers.end(), [](const NamedTensor& b) {
        return b.name.size() > 12 && b.name.compare(b.name.size() - 12, 12, "running_mean") == 0;
      });
  if (normalizes && replicas > 1 && spec.model.batch_norm != BatchNorm::kSync) {
    throw ConfigError("model.batch_norm",
                      "local batch norm takes its statistics from each rank's samples: no single process "
                      "makes the same update; verify with --set model.batch_norm=sync");
  }
  if (normalizes && has_stages(spec) && spec.pipeline.micro_batches > 1) {
    throw ConfigError(
        "pipeline.micro_batches",
        "batch norm takes its statistics from each micro-batch: no single process makes the same "
        "update; verify with --micro-batches 1");
  }
  if (normalizes && spec.train.accumulate > 1)
    throw ConfigError("train.accumulate",
                      "batch norm takes its statistics from each part of the batch: no single process makes "
                      "the same update; verify without --accumulate");
}

// Returns the name of a parameter's averaged weights in a state.
std::string average_of(const std::string& parameter) {
  return fmt::format("{}/{}", kAverageState, parameter);
}

// Returns the state `name` ("momentum/fc1.weight"). A strategy whose ranks keep states of their own has them
// by rank. Here they are equal.
const at::Tensor& state_in(const StrategyState& state, const std::string& name) {
  auto found = state.optimizer.find(name);
  if (found == state.optimizer.end())
    found = state.optimizer.find(std::string(name).insert(name.find('/'), "@0"));
  STARLING_CHECK(found != state.optimizer.end(), "the strategy has no state {}", name);
  return found->second;
}

// Reference computes the update of one process naively. It computes the gradients of the whole global batch
// in one pass and then applies the formulas to each element.
class Reference {
 public:
  Reference(const RunSpec& spec, const ModelFactory& factory, const Source& source)
      : spec_(spec), replica_(make_replica(factory, at::kDouble, spec.train.seed)) {
    auto shared = std::shared_ptr<const Source>(&source, [](const Source*) {});
    loader_ = make_loader(shared, loader_options(spec, 0, 1, 0));
  }

  // Returns the parameters after the update of `before`, by name, in fp64. Averaged weights have the name
  // "ema/<parameter>".
  std::map<std::string, at::Tensor> next(const StrategyState& before, const Step& step) {
    torch::NoGradGuard no_grad;
    for (NamedTensor& p : replica_.parameters) p.tensor.copy_(before.parameters.at(p.name));
    for (NamedTensor& b : replica_.buffers) b.tensor.copy_(before.buffers.at(b.name));
    const Batch batch = loader_->next();
    {
      torch::AutoGradMode grad(true);
      for (NamedTensor& p : replica_.parameters) p.tensor.mutable_grad().reset();
      batch_loss(replica_.model, batch, at::kDouble, false).mean().backward();
    }
    const double limit = spec_.optimizer.clip_value;
    for (NamedTensor& p : replica_.parameters) {
      if (limit > 0 && p.tensor.grad().defined()) p.tensor.mutable_grad().clamp_(-limit, limit);
    }
    const double scale = clip_scale();
    std::map<std::string, at::Tensor> after;
    for (NamedTensor& p : replica_.parameters) update(p, before, step, scale, after);
    return after;
  }

 private:
  double clip_scale() const {
    if (spec_.optimizer.clip_norm <= 0) return 1;
    double squares = 0;
    for (const NamedTensor& p : replica_.parameters) {
      if (p.tensor.grad().defined()) squares += p.tensor.grad().square().sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    return norm > spec_.optimizer.clip_norm ? spec_.optimizer.clip_norm / (norm + 1e-6) : 1;
  }

  void update(const NamedTensor& p, const StrategyState& before, const Step& step, double scale,
              std::map<std::string, at::Tensor>& after) const {
    const at::Tensor gradient =
        p.tensor.grad().defined() ? p.tensor.grad().contiguous() : torch::zeros_like(p.tensor).contiguous();
    const at::Tensor old = p.tensor.detach().contiguous();
    at::Tensor result = torch::empty_like(old);
    std::vector<at::Tensor> states;
    const UpdateRule rule = make_update_rule(spec_.optimizer);
    for (const std::string& name : rule.state_names()) {
      states.push_back(state_in(before, name + "/" + p.name).to(at::kDouble).clone());
    }
    std::vector<const double*> states_before;
    std::vector<double*> state_out;
    for (const at::Tensor& s : states) {
      states_before.push_back(s.data_ptr<double>());
      state_out.push_back(s.data_ptr<double>());
    }
    const double* gradients[] = {gradient.data_ptr<double>()};
    UpdateArgs<double, double> args;
    args.gradients = gradients;
    args.gradient_scale = scale;
    args.parameter = old.data_ptr<double>();
    args.parameter_out = result.data_ptr<double>();
    args.state = states_before.data();
    args.state_out = state_out.data();
    args.count = static_cast<size_t>(old.numel());
    reference_update(args, spec_.optimizer, step.lr, step.index, p.tensor.dim() <= 1);
    after[p.name] = result;
    if (rule.average_state() >= 0) after[average_of(p.name)] = states.back();
  }

  const RunSpec& spec_;
  Replica replica_;
  std::unique_ptr<Loader> loader_;
};

void compare(const StrategyState& before, const StrategyState& after,
             const std::map<std::string, at::Tensor>& expected, int64_t step,
             std::map<std::string, Deviation>& worst) {
  for (const auto& [name, reference] : expected) {
    // Averaged weights move by a small share of their size. So their deviation is relative to their norm.
    const bool average = name.starts_with(average_of(""));
    const at::Tensor& actual = average ? state_in(after, name) : after.parameters.at(name);
    const at::Tensor change = average ? reference : reference - before.parameters.at(name).to(at::kDouble);
    const double norm = change.norm().item<double>();
    const double difference = (actual.to(at::kDouble) - reference).norm().item<double>();
    // If neither side changes a tensor, its deviation is zero. If only one side changes it, the deviation is
    // infinite.
    double relative = difference == 0 ? 0 : difference / norm;
    if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
    Deviation& deviation = worst[name];
    if (deviation.tensor.empty() || relative > deviation.relative) deviation = {name, relative, step};
  }
}

}  // namespace

VerifyReport verify(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                    const RunEnvironment& environment, const OnBucket& on_bucket) {
  Group& group = environment.group;
  const std::vector<std::string> hybrid = hybrid_layers_of(spec, factory, *data.train, environment);
  const MeshGroups axes(spec, environment);
  std::unique_ptr<Group> norm_group;
  if (spec.model.batch_norm == BatchNorm::kSync && axes.mesh().replica > 1)
    norm_group = axes.make_replica_group("batch-norm");
  const ModelFactory model = on_run_device(spec, environment, factory(model_hooks(norm_group.get())));
  const TrainLength length = train_length(spec, *data.train);
  const std::unique_ptr<Strategy> made =
      make_strategy({spec, {}, model, length.total_steps, environment, axes, on_bucket, hybrid});
  Strategy& strategy = *made;
  refuse_what_one_process_cannot_do(spec, strategy.evaluated(), axes.mesh().replica);

  // All ranks of a replica see the replica's share of the batch. Under data.share = "auto" the shares are
  // equal.
  LoaderOptions options =
      loader_options(spec, axes.place().replica, static_cast<int>(axes.mesh().replica), 0);
  options.unequal = has_unequal_shares(spec);
  options.parts = known_parts(spec, {});
  options.least = least_samples(spec);
  auto loader = make_loader(data.train, options);
  std::unique_ptr<Reference> reference;
  if (group.rank() == 0) reference = std::make_unique<Reference>(spec, factory(ModelHooks{}), *data.train);
  std::map<std::string, Deviation> worst;
  for (int64_t i = 1; i <= spec.verify.steps; ++i) {
    const StrategyState before = strategy.state();
    const ScheduleLength schedule{length.total_steps, length.steps_per_epoch, spec.train.global_batch};
    const Step step{i, learning_rate(spec.optimizer.lr, spec.schedule, schedule, i - 1), false};
    strategy.begin_step(step);
    strategy.forward_backward(loader->next());
    strategy.update();
    const StrategyState after = strategy.state();
    if (reference) compare(before, after, reference->next(before, step), i, worst);
    if (group.size() > 1) barrier(group);  // all other ranks wait here while rank 0 computes
  }
  VerifyReport report;
  report.tolerance = spec.verify.tolerance;
  for (const auto& item : worst) report.deviations.push_back(item.second);
  std::sort(report.deviations.begin(), report.deviations.end(),
            [](const Deviation& a, const Deviation& b) { return a.relative > b.relative; });
  return report;
}

}  // namespace starling
