#include "starling/run/training.h"

#include <torch/torch.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>

#include "starling/c10d/data_type.h"
#include "starling/nn/direct_linear.h"
#include "starling/nn/state.h"
#include "starling/parallel/delayed.h"
#include "starling/run/hybrid_choice.h"
#include "starling/run/members.h"
#include "starling/run/mesh_groups.h"
#include "starling/run/own_samples.h"
#include "starling/run/run_folder.h"
#include "starling/run/strategies.h"
#include "starling/spec/emulation.h"
#include "starling/spec/on_failure.h"
#include "starling/train/store_tally.h"
#include "starling/train/trainer.h"

namespace starling {

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
  Batch batch = source.read(indices, 0);
  batch.keys = at::arange(batch.size(), at::kLong);  // a model with dropout draws from them
  return batch;
}

RunStarted started(const RunSpec& spec, const TrainLength& length, const Choices& choices,
                   const Surroundings& around, int64_t parameters) {
  RunStarted event;
  event.run_dir = around.run_dir;
  event.model = spec.model.name;
  event.data = spec.data.source;
  event.ranks = around.group.size();
  event.threads = spec.train.threads;
  event.global_batch = spec.train.global_batch;
  event.total_steps = length.total_steps;
  event.first_step = length.first_step;
  event.params = parameters;
  event.choices = choices;
  return event;
}

std::map<std::string, double> with_shuffle(std::map<std::string, double> print, const OwnSamples& own,
                                           Group& group, double run_s) {
  if (!own.shuffle.samples) return print;
  double sums[2] = {static_cast<double>(own.shuffle.moved), static_cast<double>(own.shuffle.bytes)};
  group.all_reduce(sums, 2, DataType::kFp64, ReduceOp::kSum);
  print["samples_moved"] = sums[0];
  print["shuffle_bytes"] = sums[1];
  print["shuffle_s"] = own.shuffle.seconds;
  print["shuffle_share"] = own.shuffle.seconds / (own.shuffle.seconds + run_s);
  return print;
}

// Collective. What the ranks of a pipeline did in the last step, for people: timeline.json in the run folder.
void keep_timeline(const BuiltStrategy& built, const RunResult& result, const Surroundings& around) {
  if (built.write_timeline && result.steps > 0)
    built.write_timeline(around.run_dir.empty() || !around.leads() ? "" : around.run_dir + "/timeline.json");
}

// Workers of servers that are lost one by one while the others go on need no group for what they tell each other.
std::unique_ptr<Tally> tally_of(const RunSpec& spec, const Surroundings& around,
                                const std::function<void()>& lead) {
  if (!has_servers(spec) || !goes_on_after_loss(spec) || around.store == nullptr)
    return std::make_unique<GroupTally>(around.group);
  return std::make_unique<StoreTally>(*around.store, around.group.rank(), around.group.size(),
                                      around.meeting.group.timeout, lead);
}

// `state` has the same names and shapes on all ranks; that of rank `source` comes to all.
void broadcast_state(Group& group, int source, StrategyState& state) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  for (auto* tensors : {&state.parameters, &state.buffers, &state.optimizer}) {
    for (auto& [name, tensor] : *tensors) {
      tensor = tensor.contiguous();
      group.broadcast(tensor.data_ptr(), static_cast<size_t>(tensor.numel()),
                      data_type_of(tensor.scalar_type()), source);
    }
  }
}

// The model as it stands, for a file of weights.
StrategyState shown(const Replica& replica) {
  StrategyState state;
  for (const NamedTensor& p : replica.parameters) state.parameters[p.name] = p.tensor.detach().contiguous();
  for (const NamedTensor& b : replica.buffers) state.buffers[b.name] = b.tensor.detach();
  return state;
}

int64_t parameters_of(const BuiltStrategy& built) {
  return built.parameters > 0 ? built.parameters : parameter_count(*built.evaluated);
}

// A run, over the generations of its members.
class Training {
 public:
  Training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
           const Surroundings& around)
      : spec_(spec), factory_(factory), data_(data) {
    around_.emplace(around);
  }

  RunResult run() {
    prepare();
    for (;;) {
      try {
        return generation();
      } catch (const CommError& error) {
        if (!begun_ || !can_take_over() || !around_->regroup) throw;
        regroup(error);
      }
    }
  }

 private:
  // Whether a replica is divided over several ranks.
  bool cut() const { return !has_whole_models(spec_); }
  // Strategies that answer a loss by a new generation, which takes their state over.
  bool can_take_over() const { return goes_on_after_loss(spec_) && !has_servers(spec_); }
  bool retires() const {
    return goes_on_after_loss(spec_) && has_servers(spec_) && around_->store != nullptr;
  }
  std::vector<int> members() const {
    return around_->members.empty() ? all_members(around_->group.size()).ranks : around_->members;
  }

  void prepare();
  RunResult generation();
  void regroup(const CommError& error);
  void take_over_state(const BuiltStrategy& built, TrainParts& parts);
  void announce(const BuiltStrategy& built);
  void lead(const BuiltStrategy& built);
  Takeover after_loss(const BuiltStrategy& built, int64_t step);
  RunResult train_to_the_end(const BuiltStrategy& built, Delayed* delayed, const MeshGroups& axes,
                             TrainParts& parts, Tally& tally);

  const RunSpec& spec_;
  const SyncedModelFactory& factory_;
  const DataSets& data_;
  const DirectLinear direct_;
  std::optional<Surroundings> around_;  // of the generation; RunFolder keeps a reference to what is inside
  std::optional<RunFolder> folder_;     // finds the checkpoint to resume from, if any
  std::vector<std::string> hybrid_;     // layers that are model-parallel
  Choices choices_;
  OwnSamples own_;
  TrainLength length_;
  TrainProgress progress_;
  std::unique_ptr<Loader> loader_;
  bool begun_ = false;
  std::set<int> lost_;  // server modes: that were told of

  // From one generation to the next.
  std::optional<StrategyState> state_;
  std::vector<int> just_lost_;
};

void Training::prepare() {
  folder_.emplace(spec_, *around_);
  hybrid_ = hybrid_layers_of(spec_, factory_, *data_.train, *around_);
  choices_ = make_choices(spec_, factory_(ModelHooks{}), first_samples(*data_.train, measured_samples(spec_)),
                          folder_->earlier_choices(), around_->group, around_->clock);
  apply_choices(choices_);
}

RunResult Training::generation() {
  const Surroundings& around = *around_;
  Group& group = around.group;
  const MeshGroups axes(spec_, around);
  std::unique_ptr<Group> norm_group;
  if (spec_.model.batch_norm == BatchNorm::kSync && axes.mesh().replica > 1)
    norm_group = axes.make_replica_group("batch-norm");
  if (!begun_) {
    own_ = own_samples(spec_, data_, axes, around.clock);
    length_ = train_length(spec_, data_.train->size() / spec_.train.global_batch);
    length_.first_step = folder_->first_step();
  }
  const ModelFactory model = factory_(model_hooks(norm_group.get()));
  const BuiltStrategy built =
      make_strategy({spec_, choices_, model, length_.total_steps, around, axes, {}, hybrid_});
  const Emulation emulation = parse_emulation(spec_.train.emulate);
  Delayed delayed(*built.strategy, emulation, around.world_rank(), spec_.train.seed, around.clock);
  Strategy& strategy = emulation.any() ? static_cast<Strategy&>(delayed) : *built.strategy;
  const auto tally = tally_of(spec_, around, [&] { lead(built); });
  GroupTally evaluators(axes.evaluators());

  loader_ = nullptr;
  TrainParts parts{strategy, *built.evaluated, loader_,      data_.test.get(), group,
                   *tally,   around.sink,      around.clock, around.stop};
  if (cut()) parts.evaluators = &evaluators;
  if (begun_) {
    take_over_state(built, parts);
  } else {
    folder_->restore(*built.strategy);
  }
  loader_ = cut() ? first_loader(spec_, own_, axes.replicas(), axes.replicas().rank(),
                                 all_members(axes.replicas().size()).ranks, length_.first_step)
                  : first_loader(spec_, own_, group, around.world_rank(), members(), length_.first_step);
  announce(built);
  try {
    return train_to_the_end(built, emulation.any() ? &delayed : nullptr, axes, parts, *tally);
  } catch (const CommError& error) {
    if (can_take_over()) {
      group.abort(error.what());  // those that still compute learn of it at their next collective
      state_ = built.own_state();
      const TrafficCount traffic = group.traffic();
      progress_.bytes_sent += traffic.socket_sent + traffic.window_written;
    }
    throw;
  }
}

void Training::regroup(const CommError& error) {
  const std::vector<int> before = members();
  around_.emplace(around_->regroup(error));
  const std::vector<int> now = members();
  just_lost_.clear();
  std::set_difference(before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(just_lost_));
}

// The survivor that is furthest has the state that counts: who has made a step has made it whole.
void Training::take_over_state(const BuiltStrategy& built, TrainParts& parts) {
  Group& group = around_->group;
  const int64_t mine[2] = {state_->step, progress_.closed_step};
  std::vector<int64_t> all(2 * static_cast<size_t>(group.size()));
  all.assign(mine, mine + 2);
  if (group.size() > 1) {
    all.resize(2 * static_cast<size_t>(group.size()));
    group.all_gather(mine, all.data(), 2, DataType::kInt64);
  }
  int furthest = 0;
  bool closed = true;
  for (int r = 0; r < group.size(); ++r) {
    if (all[2 * r] > all[2 * furthest]) furthest = r;
  }
  const int64_t step = all[2 * furthest];
  for (int r = 0; r < group.size(); ++r) closed = closed && all[2 * r + 1] >= step;
  StrategyState state = furthest == group.rank() ? *state_ : built.own_state();
  state.step = step;
  broadcast_state(group, furthest, state);
  built.strategy->load_state(state);
  length_.first_step = progress_.result.steps = step;
  parts.close_first = !closed;
}

// The first generation begins, or a later one goes on.
void Training::announce(const BuiltStrategy& built) {
  const Surroundings& around = *around_;
  if (!begun_) {
    begun_ = true;
    around.sink.emit(started(spec_, length_, choices_, around, parameters_of(built)));
    return;
  }
  if (around.group.rank() == 0) lead(built);
  RanksLost lost{length_.first_step, just_lost_, around.group.size(), 0};
  lost.seconds = to_seconds(around.clock.now() - progress_.last_end);
  std::vector<int>& ranks = progress_.result.lost_ranks;
  ranks.insert(ranks.end(), just_lost_.begin(), just_lost_.end());
  progress_.result.recovery_s += lost.seconds;
  if (around.leads()) around.sink.emit(lost);
}

void Training::lead(const BuiltStrategy& built) {
  if (!around_->lead || !around_->lead()) return;
  TrainLength from_here = length_;
  from_here.first_step = progress_.result.steps;
  around_->sink.emit(started(spec_, from_here, choices_, *around_, parameters_of(built)));
}

Takeover Training::after_loss(const BuiltStrategy& built, int64_t step) {
  Takeover takeover;
  const std::set<int> now = built.lost();
  std::set_difference(now.begin(), now.end(), lost_.begin(), lost_.end(), std::back_inserter(takeover.lost));
  lost_ = now;
  std::vector<int> left = members();
  std::erase_if(left, [&](int rank) { return lost_.count(rank) > 0; });
  takeover.left = std::ssize(left);
  if (!takes_leases(spec_, own_)) loader_ = loader_of(spec_, own_, around_->world_rank(), left, step);
  if (left.front() == around_->world_rank()) lead(built);
  return takeover;
}

RunResult Training::train_to_the_end(const BuiltStrategy& built, Delayed* delayed, const MeshGroups& axes,
                                     TrainParts& parts, Tally& tally) {
  const Surroundings& around = *around_;
  Strategy& strategy = parts.strategy;
  const Nanoseconds begin = around.clock.now();
  parts.save_checkpoint = [&](int64_t step) {
    folder_->save_checkpoint(strategy, choices_, step, length_.steps_per_epoch, length_.total_steps);
  };
  parts.fingerprint = [&] {
    auto print =
        with_shuffle(built.fingerprint(), own_, axes.replicas(), to_seconds(around.clock.now() - begin));
    // Collective, so not where a worker may be missing.
    if (delayed != nullptr && (!retires() || built.lost().empty())) print.merge(delayed->times(around.group));
    return print;
  };
  parts.after_loss = [&](int64_t step) { return after_loss(built, step); };
  if (retires()) {
    parts.leave = [&] {
      strategy.consensus();  // the last that workers ask of the servers: each has the whole model now
      built.leave();
    };
  }
  RunResult result = train(spec_, length_, parts, progress_);
  result.exchange = exchange_of(spec_);
  if (!retires()) strategy.consensus();
  result.params = parameters_of(built);
  folder_->finish([&] { return retires() ? shown(*built.evaluated) : strategy.state(); });
  keep_timeline(built, result, around);
  if (around.leads()) around.sink.emit(result);
  around.sink.flush();
  tally.reported();
  if (can_take_over() && around.store != nullptr) leave_members(*around.store, around.world_rank());
  return result;
}

}  // namespace

std::vector<std::string> hybrid_layers_of(const RunSpec& spec, const SyncedModelFactory& factory,
                                          const Source& data, const Surroundings& around) {
  if (spec.train.hybrid == "none") return {};
  const HybridChoice choice = choose_hybrid(spec, factory(ModelHooks{}), data.info());
  around.sink.emit(Message{Severity::kInfo, around.group.rank(), "hybrid: " + choice.why});
  return choice.layers;
}

RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const Surroundings& around) {
  return Training(spec, factory, data, around).run();
}

}  // namespace starling
