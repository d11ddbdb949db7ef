#include "starling/run/verify.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "starling/base/error.h"
#include "starling/optim/schedule.h"
#include "starling/optim/update_rule_reference.h"
#include "starling/run/strategies.h"
#include "starling/train/trainer.h"

namespace starling {
namespace {

void refuse_what_one_process_cannot_do(const RunSpec& spec, const Replica& replica, int64_t replicas) {
  const std::string& exchange = spec.exchange.name;
  const bool exact =
      exchange == "all-reduce" || exchange == "central" ||
      (exchange == "parameter-server" && spec.exchange.staleness == "0" && spec.exchange.backup == 0);
  if (!exact || spec.exchange.codec != "none") {
    throw ConfigError("exchange.name",
                      exchange +
                          " is not synchronous SGD: no single process makes the same update; its "
                          "equations are tested in parallel/exchange_test.cc");
  }
  const bool normalises =
      std::any_of(replica.buffers.begin(), replica.buffers.end(), [](const NamedTensor& b) {
        return b.name.size() > 12 && b.name.compare(b.name.size() - 12, 12, "running_mean") == 0;
      });
  if (normalises && replicas > 1 && spec.model.batch_norm != BatchNorm::kSync) {
    throw ConfigError("model.batch_norm",
                      "local batch norm takes its statistics from each rank's samples: no single process "
                      "makes the same update; "
                      "verify with --set model.batch_norm=sync");
  }
  if (normalises && is_pipeline(spec) && spec.pipeline.micro_batches > 1) {
    throw ConfigError(
        "pipeline.micro_batches",
        "batch norm takes its statistics from each micro-batch: no single process makes the same "
        "update; verify with --micro-batches 1");
  }
}

// One process's update, naively: the gradients of the whole global batch in one pass, then the formulas element by element.
class Reference {
 public:
  Reference(const RunSpec& spec, const ModelFactory& factory, const Source& source)
      : spec_(spec), replica_(make_replica(factory, at::kDouble, spec.train.seed)) {
    auto shared = std::shared_ptr<const Source>(&source, [](const Source*) {});
    loader_ = make_loader(shared, loader_options(spec, 0, 1, 0));
  }

  // The parameters after the update of `before`, by name; fp64.
  std::map<std::string, at::Tensor> next(const StrategyState& before, const Step& step) {
    torch::NoGradGuard no_grad;
    for (NamedTensor& p : replica_.parameters) p.tensor.copy_(before.parameters.at(p.name));
    for (NamedTensor& b : replica_.buffers) b.tensor.copy_(before.buffers.at(b.name));
    const Batch batch = loader_->next();
    {
      torch::AutoGradMode grad(true);
      for (NamedTensor& p : replica_.parameters) p.tensor.mutable_grad().reset();
      batch_loss(replica_.model, batch, at::kDouble, false).backward();
    }
    const double scale = clip_scale();
    std::map<std::string, at::Tensor> after;
    for (NamedTensor& p : replica_.parameters) after[p.name] = updated(p, before, step, scale);
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

  at::Tensor updated(const NamedTensor& p, const StrategyState& before, const Step& step,
                     double scale) const {
    const at::Tensor gradient =
        p.tensor.grad().defined() ? p.tensor.grad().contiguous() : torch::zeros_like(p.tensor).contiguous();
    const at::Tensor old = p.tensor.detach().contiguous();
    at::Tensor result = torch::empty_like(old);
    std::vector<at::Tensor> states;
    const UpdateRule rule = make_update_rule(spec_.optimizer);
    for (const std::string& name : rule.state_names()) {
      states.push_back(before.optimizer.at(name + "/" + p.name).to(at::kDouble).clone());
    }
    std::vector<const double*> state_in;
    std::vector<double*> state_out;
    for (const at::Tensor& s : states) {
      state_in.push_back(s.data_ptr<double>());
      state_out.push_back(s.data_ptr<double>());
    }
    const double* gradients[] = {gradient.data_ptr<double>()};
    UpdateArgs<double, double> args;
    args.gradients = gradients;
    args.gradient_scale = scale;
    args.parameter = old.data_ptr<double>();
    args.parameter_out = result.data_ptr<double>();
    args.state = state_in.data();
    args.state_out = state_out.data();
    args.count = static_cast<size_t>(old.numel());
    reference_update(args, spec_.optimizer, step.lr, step.index);
    return result;
  }

  const RunSpec& spec_;
  Replica replica_;
  std::unique_ptr<Loader> loader_;
};

void compare(const StrategyState& before, const StrategyState& after,
             const std::map<std::string, at::Tensor>& expected, int64_t step,
             std::map<std::string, Deviation>& worst) {
  for (const auto& [name, reference] : expected) {
    const at::Tensor old = before.parameters.at(name).to(at::kDouble);
    const double norm = (reference - old).norm().item<double>();
    const double difference = (after.parameters.at(name).to(at::kDouble) - reference).norm().item<double>();
    // A tensor that neither side moves has no deviation; one that only one side moves has an infinite one.
    double relative = difference == 0 ? 0 : difference / norm;
    if (std::isnan(relative)) relative = std::numeric_limits<double>::infinity();
    Deviation& deviation = worst[name];
    if (deviation.tensor.empty() || relative > deviation.relative) deviation = {name, relative, step};
  }
}

}  // namespace

VerifyReport verify(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                    const Surroundings& around, const decltype(AllReduceOptions::on_bucket)& on_bucket) {
  Group& group = around.group;
  const MeshGroups axes(spec, around);
  std::unique_ptr<Group> norm_group;
  if (spec.model.batch_norm == BatchNorm::kSync && axes.mesh().replica > 1)
    norm_group = axes.make_replica_group("batch-norm");
  const ModelFactory model = factory(model_hooks(norm_group.get()));
  const TrainLength length = train_length(spec, data.train->size() / spec.train.global_batch);
  const BuiltStrategy built = make_strategy({spec, {}, model, length.total_steps, around, axes, on_bucket});
  Strategy& strategy = *built.strategy;
  refuse_what_one_process_cannot_do(spec, *built.evaluated, axes.mesh().replica);

  // All ranks of a replica see its share of the batch.
  auto loader = make_loader(
      data.train, loader_options(spec, axes.place().replica, static_cast<int>(axes.mesh().replica), 0));
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
    if (group.size() > 1) group.barrier();  // the others wait here while rank 0 computes
  }
  VerifyReport report;
  report.tolerance = spec.verify.tolerance;
  for (const auto& item : worst) report.deviations.push_back(item.second);
  std::sort(report.deviations.begin(), report.deviations.end(),
            [](const Deviation& a, const Deviation& b) { return a.relative > b.relative; });
  return report;
}

}  // namespace starling
