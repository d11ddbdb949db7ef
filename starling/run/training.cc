#include "starling/run/training.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <set>

#include "starling/base/error.h"
#include "starling/comm/membership.h"
#include "starling/nn/layers/direct_linear.h"
#include "starling/nn/tensor_parallel/plain_linear.h"
#include "starling/parallel/delayed.h"
#include "starling/parallel/replica/averaged_weights.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/parallel/replica/replica.h"
#include "starling/run/choice/hybrid_choice.h"
#include "starling/run/choice/share_measurement.h"
#include "starling/run/folder/gather_timeline.h"
#include "starling/run/folder/run_folder.h"
#include "starling/run/loop/carried_state.h"
#include "starling/run/loop/own_optimizer_maker.h"
#include "starling/run/loop/own_samples.h"
#include "starling/run/loop/rank_generators.h"
#include "starling/run/ranks/broadcast_state.h"
#include "starling/run/ranks/mesh_groups.h"
#include "starling/run/ranks/same_data.h"
#include "starling/run/run_device.h"
#include "starling/run/run_started.h"
#include "starling/run/start_values.h"
#include "starling/run/strategies.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/emulation.h"
#include "starling/spec/on_failure.h"
#include "starling/train/store_gather.h"
#include "starling/train/trainer.h"

namespace starling {

LoaderOptions loader_options(const RunSpec& spec, int rank, int ranks, int64_t first_step) {
  return {.seed = spec.train.seed,
          .order = spec.data.order,
          .global_batch = spec.train.global_batch,
          .rank = rank,
          .ranks = ranks,
          .workers = spec.data.workers,
          .prefetch = spec.data.prefetch,
          .first_step = first_step,
          .stall_s = spec.data.stall_s};
}

namespace {

// Returns true if the ranks are workers of servers that may be lost or finish one by one while all other
// workers go on. They share no collective at the end.
bool leave_one_by_one(const RunSpec& spec, const RunEnvironment& environment) {
  return goes_on_after_loss(spec) && has_servers(spec) && environment.store != nullptr;
}

// Makes the gather for what ranks report to each other.
std::unique_ptr<RankGather> rank_gather_of(const RunSpec& spec, const RunEnvironment& environment,
                                           const std::function<void()>& lead) {
  if (!leave_one_by_one(spec, environment)) return std::make_unique<GroupGather>(environment.group);
  return std::make_unique<StoreGather>(*environment.store, environment.group.rank(), environment.group.size(),
                                       environment.rendezvous.group.timeout, lead);
}

// Returns the current model, for a file of weights.
StrategyState shown(const Replica& replica) {
  StrategyState state;
  for (const NamedTensor& p : replica.parameters) state.parameters[p.name] = p.tensor.detach().contiguous();
  for (const NamedTensor& b : replica.buffers) state.buffers[b.name] = b.tensor.detach();
  return state;
}

// A run over all generations of its group.
class Training {
 public:
  Training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
           const RunEnvironment& environment, const FitOptions& options, TensorMap* trained)
      : spec_(spec), factory_(factory), data_(data), options_(options), trained_(trained) {
    environment_.emplace(environment);
    start_of_run_ = environment.process.clock.now();
    if (!options.tensor_plan().empty()) plain_.emplace();
  }

  RunResult run() {
    prepare();
    for (;;) {
      try {
        return generation();
      } catch (const CommError& error) {
        if (!begun_ || !can_take_over() || !environment_->membership.regroup) throw;
        regroup(error);
      }
    }
  }

 private:
  friend class Generation;

  // True if a replica is sharded over several ranks.
  bool cut() const { return !has_whole_models(spec_); }
  // True if the strategy answers a loss by a new generation, which takes over its state.
  bool can_take_over() const { return goes_on_after_loss(spec_) && !has_servers(spec_); }
  std::vector<int> remaining_ranks() const {
    return environment_->membership.ranks.empty() ? full_membership(environment_->group.size()).ranks
                                                  : environment_->membership.ranks;
  }

  void prepare();
  ModelFactory model_factory(Group* norm_group) const;
  RunResult generation();
  void regroup(const CommError& error);

  const RunSpec& spec_;
  const SyncedModelFactory& factory_;
  const DataSets& data_;
  const FitOptions& options_;
  TensorMap* trained_;  // null if nobody wants the trained model
  const DirectLinear direct_;
  std::optional<PlainLinears> plain_;  // of a user's tensor plan
  std::optional<RunEnvironment>
      environment_;  // environment of the generation; RunFolder keeps a reference to what is inside
  std::optional<RunFolder> folder_;  // finds the checkpoint to resume from, if there is one
  std::vector<std::string> hybrid_;  // names of the model-parallel layers
  Choices choices_;
  std::optional<StartValues> start_;  // of a user's program, and of a model with initial weights
  OwnSamples own_;
  TrainLength length_;
  TrainProgress progress_;
  std::unique_ptr<Loader> loader_;
  bool begun_ = false;
  Nanoseconds start_of_run_{};
  std::set<int> lost_;  // with servers: the ranks whose loss has been reported

  // The state that passes from one generation to the next.
  std::optional<StrategyState> state_;
  TensorMap carried_, carried_at_break_;  // what the module carried after a step, and when the next one broke
  int64_t carried_step_ = 0;
  std::vector<int> just_lost_;
};

// One generation of a run: the groups of its axes, its strategy and its hooks for the training loop.
class Generation final : public TrainHooks {
 public:
  explicit Generation(Training& run);

  // The first generation of a run resumes from a checkpoint if there is one.
  void begin();
  // Begins a later generation, which takes over the state of the survivor that has taken the most steps.
  void take_over();
  // Runs the remaining steps and ends the run.
  RunResult train_to_the_end();
  // Called when a step fails. Keeps what the next generation needs.
  void break_off(const CommError& error);

  void save_checkpoint(int64_t step, bool must) override;
  bool ready_to_save() override { return run_.folder_->ready_to_save(); }
  StrategyStats statistics() override;
  Takeover after_loss(int64_t step) override;
  void step_done(int64_t step, const StepReport& report) override;
  void leave() override;

 private:
  std::unique_ptr<Loader> own_loader(int64_t first);
  void resume_carried();
  // Keeps what the module carries after `step`, for a later generation.
  void keep_carried(int64_t step);
  void begin_measurement();
  void take_frozen();
  StrategyState with_frozen(StrategyState state);
  void lead();
  StrategyState final_state();
  std::exception_ptr finish(const RunResult& result);
  std::map<std::string, std::string> metadata(const RunResult& result) const;
  bool shares_collectives_after(const RunResult& result) const;
  // Returns the trained model on every rank.
  TensorMap trained_model();

  Training& run_;
  const RunSpec& spec_;
  const RunEnvironment& environment_;
  const bool one_by_one_;  // see leave_one_by_one()
  const MeshGroups axes_;
  std::unique_ptr<Group> norm_group_;
  CarriedState carried_;
  const ModelFactory model_;
  std::unique_ptr<Strategy> made_;
  std::optional<Delayed> delayed_;  // set if train.emulate slows this rank down
  Strategy& strategy_;
  std::unique_ptr<RankGather> rank_gather_;
  GroupGather evaluators_;
  bool close_first_ = false;
  Nanoseconds begin_{};
  std::optional<ShareMeasurement> shares_;  // set while the ranks measure their shares of a batch
};

void Training::prepare() {
  const KeptGenerator kept;  // what is measured here may draw from the user's generator
  folder_.emplace(spec_, *environment_);
  require_same_data(data_, environment_->group, "Run::fit");
  require_same_options(options_, environment_->group);
  if (!options_.groups().empty()) require_groups_match(options_, *factory_(ModelHooks{})().module);
  hybrid_ = hybrid_layers_of(spec_, factory_, *data_.train, *environment_);
  choices_ = make_choices(spec_, factory_(ModelHooks{}), first_samples(*data_.train, measured_samples(spec_)),
                          folder_->earlier_choices(), environment_->group, environment_->process.clock);
  apply_choices(choices_);
  // Models of the zoo begin equal by the seed. A file of initial weights may differ from host to host.
  if (spec_.model.name != kUserModel && spec_.model.init.empty()) return;
  start_.emplace(factory_(ModelHooks{}), spec_.train.seed, environment_->group);
  if (folder_->resumed() != nullptr) start_->resume(*folder_->resumed());
}

// Returns the factory of the models that strategies train.
ModelFactory Training::model_factory(Group* norm_group) const {
  ModelFactory factory = factory_(model_hooks(norm_group));
  return on_run_device(spec_, *environment_, start_ ? start_->in_factory(std::move(factory)) : factory);
}

RunResult Training::generation() {
  loader_ = nullptr;
  std::optional<KeptGenerator> kept(std::in_place);  // strategies make models
  Generation generation(*this);
  kept.reset();
  if (begun_) {
    generation.take_over();
  } else {
    generation.begin();
  }
  try {
    return generation.train_to_the_end();
  } catch (const CommError& error) {
    generation.break_off(error);
    throw;
  }
}

void Training::regroup(const CommError& error) {
  const std::vector<int> before = remaining_ranks();
  environment_.emplace(environment_->membership.regroup(error));
  const std::vector<int> now = remaining_ranks();
  just_lost_.clear();
  std::set_difference(before.begin(), before.end(), now.begin(), now.end(), std::back_inserter(just_lost_));
}

std::unique_ptr<Group> norm_group_of(const RunSpec& spec, const MeshGroups& axes) {
  if (spec.model.batch_norm != BatchNorm::kSync || axes.mesh().replica == 1) return nullptr;
  return axes.make_replica_group("batch-norm");
}

Strategy& delayed_or(std::optional<Delayed>& delayed, Strategy& made, const RunSpec& spec,
                     const RunEnvironment& environment) {
  const Emulation emulation = parse_emulation(spec.train.emulate);
  if (!emulation.any()) return made;
  const double equal = static_cast<double>(spec.train.global_batch) / static_cast<double>(spec.train.ranks);
  return delayed.emplace(made, emulation, environment.world_rank(), spec.train.seed,
                         environment.process.clock, has_unequal_shares(spec) ? equal : 0);
}

Generation::Generation(Training& run)
    : run_(run),
      spec_(run.spec_),
      environment_(*run.environment_),
      one_by_one_(leave_one_by_one(spec_, environment_)),
      axes_(spec_, environment_),
      norm_group_(norm_group_of(spec_, axes_)),
      model_(carried_.watch(run.model_factory(norm_group_.get()))),
      made_([&] {
        if (!run.begun_) {
          run.own_ = own_samples(spec_, run.data_, axes_, environment_);
          run.own_.shares = known_parts(spec_, run.choices_);
          run.length_ = train_length(spec_, *run.data_.train);
          run.length_.first_step = run.folder_->first_step();
        }
        return make_strategy({spec_,
                              run.choices_,
                              model_,
                              run.length_.total_steps,
                              environment_,
                              axes_,
                              {},
                              run.hybrid_,
                              run.own_.held_out,
                              {own_optimizer_of(run.options_, spec_), run.options_.tensor_plan(), [&run] {
                                 return first_samples(*run.data_.train, measured_samples(run.spec_));
                               }}});
      }()),
      strategy_(delayed_or(delayed_, *made_, spec_, environment_)),
      rank_gather_(rank_gather_of(spec_, environment_, [this] { lead(); })),
      evaluators_(axes_.evaluators()) {
  carried_.find_replica();
  if (carried_.any() && one_by_one_) {
    throw ConfigError("train.on_failure",
                      "the workers of servers leave one by one, so a checkpoint cannot have the tensors that "
                      "the module carries; use \"stop\"");
  }
}

std::unique_ptr<Loader> Generation::own_loader(int64_t first) {
  if (!run_.cut()) {
    return first_loader(spec_, run_.own_, environment_.group, environment_.world_rank(),
                        run_.remaining_ranks(), first);
  }
  // All ranks of a replica read the replica's samples.
  Group& replicas = axes_.replicas();
  return first_loader(spec_, run_.own_, replicas, replicas.rank(), full_membership(replicas.size()).ranks,
                      first);
}

void Generation::resume_carried() {
  const CheckpointState* resumed = run_.folder_->resumed();
  if (carried_.any() && resumed != nullptr &&
      !carried_.load(spec_, environment_.world_rank(), *resumed,
                     run_device(spec_, environment_.group.local_rank())) &&
      environment_.leads()) {
    environment_.process.sink.emit(
        Message{Severity::kWarning, environment_.group.rank(),
                "the checkpoint does not have the tensors that the module carries on "
                "exactly these ranks; they begin anew"});
  }
  keep_carried(run_.length_.first_step);
}

void Generation::keep_carried(int64_t step) {
  if (!run_.can_take_over() || !carried_.any()) return;
  run_.carried_ = carried_.copy();
  run_.carried_step_ = step;
}

void Generation::begin() {
  run_.folder_->restore(*made_);
  if (environment_.group.size() > 1) barrier(environment_.group);  // the folder stays if one rank refuses
  run_.folder_->begin();
  take_frozen();
  begin_generator(spec_, environment_.world_rank(), run_.folder_->resumed());
  resume_carried();
  run_.loader_ = own_loader(run_.length_.first_step);
  run_.begun_ = true;
  RunStarted event = run_started(spec_, *run_.data_.train, run_.length_, run_.choices_, environment_,
                                 strategy_.whole_parameters());
  event.startup_s = to_seconds(environment_.process.clock.now() - run_.start_of_run_);
  environment_.process.sink.emit(event);
  begin_measurement();
}

void Generation::begin_measurement() {
  if (!measures_shares(spec_, run_.choices_, environment_.group)) return;
  shares_.emplace(shares_of_remaining(spec_, run_.own_.shares, run_.remaining_ranks()), least_samples(spec_),
                  environment_.group);
  if (environment_.leads()) environment_.process.sink.emit(ShareMeasurement::begins());
}

void Generation::step_done(int64_t step, const StepReport& report) {
  keep_carried(step);
  if (!shares_ || !shares_->add(report.compute_s)) return;
  const std::vector<int64_t> all = shares_of_ranks(spec_, shares_->shares(), run_.remaining_ranks());
  run_.own_.shares.assign(all.begin(), all.end());
  run_.loader_ = own_loader(step);
  if (environment_.leads()) environment_.process.sink.emit(shares_->message());
  if (!shares_->done()) return;
  run_.choices_["share"] = shares_text(all);
  shares_.reset();
}

void Generation::take_over() {
  Group& group = environment_.group;
  StrategyState& kept = *run_.state_;
  TrainProgress& progress = run_.progress_;
  const int64_t mine[2] = {kept.step, progress.closed_step};
  std::vector<int64_t> all(mine, mine + 2);
  if (group.size() > 1) {
    all.resize(2 * static_cast<size_t>(group.size()));
    all_gather(group, mine, all.data(), 2, DataType::kInt64);
  }
  int furthest = 0;
  bool closed = true;
  for (int r = 0; r < group.size(); ++r) {
    if (all[2 * r] > all[2 * furthest]) furthest = r;
  }
  const int64_t step = all[2 * furthest];
  for (int r = 0; r < group.size(); ++r) closed = closed && all[2 * r + 1] >= step;
  StrategyState state = furthest == group.rank() ? kept : strategy_.recoverable()->own_state();
  state.step = step;
  broadcast_state(group, furthest, state);
  made_->load_state(state);
  take_frozen();
  // Another rank may have completed the step that broke here, after this rank's forward pass.
  carried_.put(step > run_.carried_step_ ? run_.carried_at_break_ : run_.carried_);
  keep_carried(step);
  run_.length_.first_step = progress.result.steps = step;
  agree_on_shares(spec_, group, run_.choices_, run_.own_.shares);
  close_first_ = !closed;
  run_.loader_ = own_loader(run_.length_.first_step);

  if (group.rank() == 0) lead();
  RanksLost lost{step, run_.just_lost_, group.size(), 0};
  lost.seconds = to_seconds(environment_.process.clock.now() - progress.last_end);
  std::vector<int>& ranks = progress.result.lost_ranks;
  ranks.insert(ranks.end(), run_.just_lost_.begin(), run_.just_lost_.end());
  progress.result.recovery_s += lost.seconds;
  if (environment_.leads()) environment_.process.sink.emit(lost);
  begin_measurement();
}

void Generation::break_off(const CommError& error) {
  if (!run_.can_take_over()) return;
  Group& group = environment_.group;
  group.abort(error.what());  // ranks that still compute learn of the error at their next collective
  run_.state_ = strategy_.recoverable()->own_state();
  run_.carried_at_break_ = carried_.copy();
  take_frozen();
  run_.progress_.bytes_sent += group.traffic().sent();
}

void Generation::lead() {
  if (!environment_.membership.lead || !environment_.membership.lead()) return;
  TrainLength from_here = run_.length_;
  from_here.first_step = run_.progress_.result.steps;
  environment_.process.sink.emit(run_started(spec_, *run_.data_.train, from_here, run_.choices_, environment_,
                                             strategy_.whole_parameters()));
}

void Generation::take_frozen() {
  if (run_.start_) run_.start_->take_frozen(strategy_.evaluated());
}

// A state without parameters is that of a rank that does not write.
StrategyState Generation::with_frozen(StrategyState state) {
  take_frozen();
  if (run_.start_ && !state.parameters.empty()) run_.start_->add_frozen(state);
  return state;
}

void Generation::save_checkpoint(int64_t step, bool must) {
  StrategyState state = strategy_.state();
  require_finite(state.parameters, environment_.world_rank(), step);
  CheckpointState checkpoint = checkpoint_of(with_frozen(std::move(state)));
  // Workers that leave one by one share no collective for the states of their generators.
  if (!one_by_one_)
    checkpoint.ranks = generators_of_ranks(spec_, environment_.world_rank(), environment_.group);
  carried_.save(spec_, environment_.world_rank(), environment_.group, checkpoint.ranks);
  checkpoint.total_steps = run_.length_.total_steps;
  checkpoint.batches = step;
  checkpoint.epoch = step / run_.length_.steps_per_epoch;
  checkpoint.choices = run_.choices_;
  run_.folder_->save_checkpoint(std::move(checkpoint), must);
}

StrategyStats Generation::statistics() {
  StrategyStats stats = with_shuffle(strategy_.strategy_stats(), run_.own_, axes_.replicas(),
                                     to_seconds(environment_.process.clock.now() - begin_));
  // This is collective, so it is skipped if a worker may be missing.
  if (delayed_ && (!one_by_one_ || strategy_.recoverable()->lost_ranks().empty()))
    stats.merge(delayed_->times(environment_.group));
  return stats;
}

Takeover Generation::after_loss(int64_t step) {
  Takeover takeover;
  const std::set<int> now = strategy_.recoverable()->lost_ranks();
  std::set_difference(now.begin(), now.end(), run_.lost_.begin(), run_.lost_.end(),
                      std::back_inserter(takeover.lost));
  run_.lost_ = now;
  std::vector<int> left = run_.remaining_ranks();
  std::erase_if(left, [&](int rank) { return now.count(rank) > 0; });
  takeover.left = std::ssize(left);
  const int own = environment_.world_rank();
  if (!takes_leases(spec_, run_.own_)) run_.loader_ = loader_of(spec_, run_.own_, own, left, step);
  if (left.front() == own) lead();
  return takeover;
}

void Generation::leave() {
  if (!one_by_one_) return;
  strategy_.consensus();  // the last request to the servers: each worker now has the whole model
  strategy_.recoverable()->leave();
}

// Returns the trained model, with its averaged weights if there are any. Ranks that leave one by one have the
// whole model since leave(). All others must have called consensus(), and this call is collective among them.
StrategyState Generation::final_state() {
  StrategyState state = one_by_one_ ? shown(strategy_.evaluated()) : strategy_.state();
  if (one_by_one_) state.step = run_.progress_.result.steps;
  require_finite(state.parameters, environment_.world_rank(), state.step);
  state = with_frozen(std::move(state));
  return spec_.optimizer.ema_decay > 0 ? with_averaged_weights(std::move(state)) : state;
}

// Returns what model.safetensors says about the weights.
std::map<std::string, std::string> Generation::metadata(const RunResult& result) const {
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", std::to_string(result.steps)}};
  if (spec_.optimizer.ema_decay > 0) metadata["ema_decay"] = fmt::format("{}", spec_.optimizer.ema_decay);
  const SourceInfo& data = run_.data_.train->info();
  if (data.text) metadata["vocabulary"] = data.vocabulary;
  return metadata;
}

// Returns true if the ranks share a collective after the files are written: those of an interrupted run end
// together, and those of a user's program may go on together. Otherwise each rank ends when it is done.
bool Generation::shares_collectives_after(const RunResult& result) const {
  return !one_by_one_ && (result.interrupted || spec_.model.name == kUserModel);
}

// Writes what the run was asked to keep. Returns the error of what could not be written, on the rank that
// writes. The run then reports its result before it ends with this error.
std::exception_ptr Generation::finish(const RunResult& result) {
  try {
    if (!one_by_one_) strategy_.consensus();
    run_.folder_->finish([&] { return final_state(); }, result.interrupted, shares_collectives_after(result),
                         metadata(result));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCheckpoint) throw;
    return std::current_exception();
  }
  return nullptr;
}

TensorMap Generation::trained_model() {
  const StrategyState state = final_state();
  const at::ScalarType type = spec_.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  TensorMap trained;
  for (const auto* tensors : {&state.parameters, &state.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      at::Tensor copy = tensor.detach().clone(at::MemoryFormat::Contiguous);
      trained[name] = copy.is_floating_point() ? copy.to(type) : copy;
    }
  }
  if (!one_by_one_) broadcast_tensors(environment_.group, trained);
  return trained;
}

RunResult Generation::train_to_the_end() {
  begin_ = environment_.process.clock.now();
  TrainParts parts{strategy_,
                   *this,
                   run_.loader_,
                   run_.data_.test.get(),
                   environment_.group,
                   *rank_gather_,
                   environment_.process,
                   close_first_,
                   nullptr,
                   run_.options_};
  if (run_.cut()) parts.evaluators = &evaluators_;
  RunResult result = train(spec_, run_.length_, parts, run_.progress_);
  result.exchange = exchange_of(spec_);
  result.share = shares_of_run(spec_, run_.own_.shares, run_.remaining_ranks());
  std::optional<StepTimeline> timeline;  // collective, so that no rank waits for the files of finish()
  if (strategy_.traced() != nullptr && result.steps > result.first_step)
    timeline = gather_timeline(*strategy_.traced());
  const std::exception_ptr unwritten = finish(result);
  if (run_.trained_ != nullptr) *run_.trained_ = trained_model();
  if (result.interrupted && run_.folder_->saved(result.steps)) result.resume = environment_.kept.resume;
  run_.folder_->report(result, timeline, shares_collectives_after(result));
  rank_gather_->reported();
  if (run_.can_take_over() && environment_.store != nullptr)
    leave_membership(*environment_.store, environment_.world_rank());
  if (unwritten) std::rethrow_exception(unwritten);
  return result;
}

}  // namespace

std::vector<std::string> hybrid_layers_of(const RunSpec& spec, const SyncedModelFactory& factory,
                                          const Source& data, const RunEnvironment& environment) {
  if (spec.train.hybrid == "none") return {};
  if (spec.train.hybrid == "auto" && data.read({0}, /*epoch=*/0).inputs().size() > 1)
    throw ConfigError(
        "train.hybrid",
        "auto chooses layers of models of one input, and this data set has several; name the layers: "
        "--hybrid LAYER,…");
  const HybridChoice choice =
      choose_hybrid(spec, factory(ModelHooks{}), data.info(), environment.group.size());
  const Severity severity = choice.layers.empty() ? Severity::kWarning : Severity::kInfo;
  environment.process.sink.emit(Message{severity, environment.group.rank(), "hybrid: " + choice.why});
  return choice.layers;
}

RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const RunEnvironment& environment, const FitOptions& options, TensorMap* trained) {
  return Training(spec, factory, data, environment, options, trained).run();
}

FitOptions zoo_options(const SourceInfo& data) {
  FitOptions options;
  if (!data.text) options.metric("accuracy", top1);
  return options;
}

}  // namespace starling
