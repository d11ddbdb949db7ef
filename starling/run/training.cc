#include "starling/run/training.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "starling/nn/direct_linear.h"
#include "starling/nn/state.h"
#include "starling/run/run_folder.h"
#include "starling/train/trainer.h"

namespace starling {

AllReduceOptions all_reduce_options(const RunSpec& spec, const Choices& choices) {
  AllReduceOptions options;
  options.master = spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  options.working = spec.train.precision == Precision::kBf16 ? at::kBFloat16 : options.master;
  options.share = spec.optimizer.share;
  options.bucket_bytes = static_cast<size_t>(spec.train.bucket_mb * (1 << 20));
  options.clip_norm = spec.optimizer.clip_norm;
  options.hash_every = spec.train.hash_every;
  options.members = spec.train.threads_mode == ThreadsMode::kBatch ? static_cast<int>(spec.train.threads) : 1;
  const auto layout = choices.find("layout");
  options.channels_last = layout != choices.end() && layout->second == "channels-last";
  options.seed = spec.train.seed;
  return options;
}

LoaderOptions loader_options(const RunSpec& spec, int rank, int ranks, int64_t first_step) {
  LoaderOptions options;
  options.seed = spec.train.seed;
  options.order = spec.data.order;
  options.global_batch = spec.train.global_batch;
  options.rank = rank;
  options.ranks = ranks;
  options.workers = spec.data.workers;
  options.prefetch = spec.data.prefetch;
  options.first_step = first_step;
  return options;
}

ModelHooks model_hooks(Group* group) {
  ModelHooks hooks;
  if (group == nullptr) return hooks;
  hooks.all_reduce_sum = [group](at::Tensor& sum) {
    const at::Tensor whole = sum.contiguous();
    const DataType type = whole.scalar_type() == at::kDouble ? DataType::kFp64 : DataType::kFp32;
    group->all_reduce(whole.data_ptr(), whole.numel(), type, ReduceOp::kSum);
    if (!whole.is_same(sum)) sum.copy_(whole);
  };
  return hooks;
}

SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data) {
  const ModelShape shape{data.input_shape, data.classes, data.text};
  zoo_model(spec.model, shape);  // refuses what does not fit now, not on the first rank that makes one
  return [model = spec.model, shape](const ModelHooks& hooks) -> ModelFactory {
    ModelFactory make = zoo_model(model, shape, hooks);
    if (model.init.empty()) return make;
    return [make, init = model.init] {
      Model made = make();
      load_model(*made.module, init);
      return made;
    };
  };
}

namespace {

Batch first_samples(const Source& source, int64_t count) {
  std::vector<int64_t> indices(std::min(count, source.size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return source.read(indices, 0);
}

RunStarted started(const RunSpec& spec, const TrainLength& length, const Choices& choices,
                   const Surroundings& around, const Replica& replica) {
  RunStarted event;
  event.run_dir = around.run_dir;
  event.model = spec.model.name;
  event.data = spec.data.source;
  event.ranks = around.group.size();
  event.threads = spec.train.threads;
  event.global_batch = spec.train.global_batch;
  event.total_steps = length.total_steps;
  event.first_step = length.first_step;
  event.params = parameter_count(replica);
  event.choices = choices;
  return event;
}

}  // namespace

RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const Surroundings& around) {
  Group& group = around.group;
  const int64_t share = spec.train.global_batch / group.size();
  RunFolder folder(spec, around);  // finds the checkpoint to resume from, if any
  const DirectLinear direct;
  const Choices choices = make_choices(spec, factory(ModelHooks{}), first_samples(*data.train, share),
                                       folder.earlier_choices(), group);
  apply_choices(choices);

  std::unique_ptr<Group> norm_group;
  if (spec.model.batch_norm == BatchNorm::kSync && group.size() > 1)
    norm_group = around.make_group("batch-norm");
  AllReduce strategy(factory(model_hooks(norm_group.get())), make_update_rule(spec.optimizer),
                     all_reduce_options(spec, choices), group, around.clock);
  folder.restore(strategy);

  auto loader =
      make_loader(data.train, loader_options(spec, group.rank(), group.size(), folder.first_step()));
  TrainLength length = train_length(spec, loader->steps_per_epoch());
  length.first_step = folder.first_step();
  around.sink.emit(started(spec, length, choices, around, strategy.replica()));

  const TrainParts parts{strategy,
                         strategy.replica(),
                         *loader,
                         data.test.get(),
                         group,
                         around.sink,
                         around.clock,
                         around.stop,
                         [&](int64_t step) {
                           folder.save_checkpoint(strategy, choices, step, length.steps_per_epoch,
                                                  length.total_steps);
                         }};
  RunResult result = train(spec, length, parts);
  strategy.consensus();
  folder.finish(strategy);
  around.sink.emit(result);
  around.sink.flush();
  return result;
}

}  // namespace starling
