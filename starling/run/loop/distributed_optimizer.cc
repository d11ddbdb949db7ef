#include "starling/run/loop/distributed_optimizer.h"

#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <map>
#include <set>

#include "starling/parallel/loop_strategy.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/run/loop/rank_generators.h"
#include "starling/run/loop/torch_optimizer.h"
#include "starling/run/message/dry_run.h"
#include "starling/run/message/exit_status.h"
#include "starling/run/run_device.h"
#include "starling/run/run_state.h"
#include "starling/run/training.h"
#include "starling/spec/enum_words.h"
#include "starling/spec/mesh.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

LoopModel loop_model(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer) {
  LoopModel model;
  model.parameters = parameters_of(module, optimizer);
  std::set<const c10::TensorImpl*> updated;
  for (const NamedTensor& p : model.parameters) updated.insert(p.tensor.unsafeGetTensorImpl());
  for (const auto& item : module.named_parameters()) {
    if (!updated.contains(item.value().unsafeGetTensorImpl()))
      model.frozen.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) model.buffers.push_back({item.key(), item.value()});
  return model;
}

// Throws ConfigError for a flag or --set of a key that the program's own loop decides. A file may hold
// settings for several programs. A program that has called Run::spec() may obey the flag itself, and fit()
// may have obeyed it.
void refuse_what_the_loop_decides(const RunState& state) {
  if (state.reads_spec || state.has_fitted) return;
  for (const auto& [key, origin] : state.origins) {
    const bool typed = origin.kind == OriginKind::kSet || origin.kind == OriginKind::kFlag;
    const bool read =
        key == "optimizer.clip_norm" || key == "optimizer.clip_value" || key == "optimizer.share";
    const bool rule = key.starts_with("optimizer.") && !read;
    const bool decided = rule || key.starts_with("schedule.") || key == "train.epochs" ||
                         key == "train.steps" || key == "train.global_batch";
    if (typed && decided)
      throw ConfigError(origin.where,
                        fmt::format("{} has no effect, because the program has a training loop of its "
                                    "own, which decides it{}: leave it out",
                                    key, key == "train.global_batch" ? " in Run::loader()" : ""));
  }
}

// If the module is on a device, the strategy and the optimizer train copies in host memory. Throws
// ConfigError if the module is not on the device that the configuration names.
void train_copies(const RunState& state, LoopModel& model, torch::optim::Optimizer& optimizer,
                  int local_rank) {
  const RunSpec& spec = state.resolved();
  const DeviceKind kind = spec.train.device;
  model.device = LoopDevice::make(model);
  const auto origin = state.origins.find("train.device");
  const bool typed = origin != state.origins.end() &&
                     (origin->second.kind == OriginKind::kSet || origin->second.kind == OriginKind::kFlag);
  if (model.device && kind == DeviceKind::kCpu && typed)
    throw ConfigError(
        origin->second.where,
        fmt::format("train.device is \"cpu\", and the module is on {}; move it to run.device(), or "
                    "leave the key out",
                    model.device->device().str()));
  if (kind == DeviceKind::kCuda || kind == DeviceKind::kOwn) {
    const at::Device wanted = run_device(spec, local_rank);
    const at::Device device = model.device ? model.device->device() : at::Device(at::kCPU);
    if (device != wanted)
      throw ConfigError(
          "train.device",
          fmt::format("the module is on {}, and this rank computes on {}; move the module there "
                      "by net->to(run.device()) before you make its optimizer",
                      device.str(), wanted.str()));
  }
  if (!model.device) return;
  std::map<const c10::TensorImpl*, at::Tensor> copies;
  for (const LoopTensor& p : model.device->parameters()) copies[p.device.unsafeGetTensorImpl()] = p.host;
  replace_parameters(optimizer, copies);
}

// Throws ConfigError if the program would train other initial weights than the configuration asks for.
void require_initial_weights(const RunState& state) {
  if (state.resolved().model.init.empty() || state.has_replicated) return;
  if (state.reads_spec || state.has_fitted) return;  // the program may have loaded them itself
  const auto origin = state.origins.find("model.init");
  throw ConfigError(origin != state.origins.end() ? origin->second.where : "--init",
                    "model.init has no effect, because the program has not called Run::replicate(), which "
                    "loads the weights: call it before this optimizer, or leave the key out");
}

// With --dry-run: prints what the loop would train, and ends the process.
[[noreturn]] void print_loop(const RunState& state, const LoopModel& model) {
  require_own_loop(state.spec);
  refuse_what_the_loop_decides(state);
  require_initial_weights(state);
  int64_t parameters = 0;
  for (const NamedTensor& p : model.parameters) parameters += p.tensor.numel();
  if (state.environment.identity.rank == 0)
    print_dry_run(
        fmt::format("would train {} parameters in the program's own loop with {} by {}",
                    with_thousands(parameters), processes_text(state.spec), state.spec.exchange.name),
        state.json);
  leave_process(kExitOk);
}

// Seeds the generator of this rank once, so that ranks draw different masks and noise.
void begin_generator_once(RunState& state) {
  if (std::exchange(state.generator_begun, true)) return;
  begin_generator(state.resolved(), state.environment.identity.rank, nullptr);
}

// Returns true if a layer by rows may follow each layer by columns.
bool has_rows(const TensorPlan& plan) {
  const auto has = [&](LayerCut cut) {
    return std::any_of(plan.begin(), plan.end(), [=](const LayerPlan& layer) { return layer.cut == cut; });
  };
  return !has(LayerCut::kColumn) || has(LayerCut::kRow);
}

// Prints once what the loop trains, and the run folder if something is kept.
void tell_begin(RunState& state, int64_t parameters, const std::string& where) {
  if (std::exchange(state.loop_told, true)) return;
  const RunEnvironment& environment = state.own_loop();
  const RunSpec& spec = state.resolved();
  const int ranks = environment.group.size();
  const auto tell = [&](std::string text) {
    environment.process.sink.emit(Message{Severity::kInfo, -1, std::move(text)});
  };
  const int64_t tensors = parse_mesh(spec.train.mesh, spec.train.ranks).tensor;
  const std::string mesh = tensors == 1 ? "" : fmt::format(", tensor axis of {}", tensors);
  const std::string codec = spec.exchange.codec == "none" ? "" : ", codec " + spec.exchange.codec;
  const std::string shard =
      spec.train.shard == Shard::kNone ? "" : ", sharded " + to_string(spec.train.shard);
  tell(fmt::format("loop of the program: {} parameters, {}{}{}{}{}{}", parameters, ranks_text(ranks),
                   ranks == 1 ? "" : ", " + spec.exchange.name, codec, shard, mesh, where));
  if (!environment.kept.folder.empty()) tell("run folder " + environment.kept.folder);
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(Run& run, torch::nn::Module& module,
                                           torch::optim::Optimizer& optimizer)
    : run_(run) {
  RunState& state = LoopAccess::state_of(run);
  with_faults_reported(state, [&] {
    LoopModel model = loop_model(module, optimizer);
    if (!state.session) print_loop(state, model);
    const RunEnvironment& environment = state.own_loop();
    const LoopPlace place{environment.group,
                          environment.process.clock,
                          environment.process.stop,
                          state.loop,
                          {.store = environment.store,
                           .rendezvous = environment.rendezvous,
                           .team = state.session ? state.own_axes().team() : nullptr},
                          state.sharded ? state.sharded->sharding_of(module) : nullptr};
    const RunSpec spec = loop_spec(state.resolved(), state.origins);
    require_own_loop(spec);
    refuse_what_the_loop_decides(state);
    require_initial_weights(state);
    train_copies(state, model, optimizer, environment.group.local_rank());
    const std::string where = model.device ? fmt::format(", on {}; parameters are updated in host memory",
                                                         model.device->device().str())
                                           : "";
    strategy_ = std::make_unique<LoopStrategy>(spec, place, std::move(model), adapt_optimizer(optimizer));
    if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
      throw ConfigError(
          "DistributedOptimizer",
          "LBFGS computes the loss several times in a step, and step() takes no closure; use another "
          "optimizer");
    begin_generator_once(state);
    tell_begin(state, strategy_->parameters(), where);
  });
}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::zero_grad() {
  strategy_->zero_grad();
}

void DistributedOptimizer::step() {
  // The program goes on as if nothing had happened: its loop has no DataLoader. The state is saved, or the
  // program has made a whole step meanwhile and has not called ProgramCheckpoint::step().
  RunState& state = LoopAccess::state_of(run_);
  if (state.loop.stopping && (state.loop_saved || std::exchange(stepped_while_stopping_, true)))
    end_interrupted(state);
  with_faults_reported(state, [&] { strategy_->step(); });
  state.most_steps = std::max(state.most_steps, strategy_->steps());
  state.session->note_loop_step(state.most_steps);
}

void DistributedOptimizer::weigh(double weight) {
  with_faults_reported(LoopAccess::state_of(run_), [&] { strategy_->weigh(weight); });
}

void DistributedOptimizer::synchronize() {
  with_faults_reported(LoopAccess::state_of(run_), [&] { strategy_->synchronize(); });
}

DistributedOptimizer::Shown DistributedOptimizer::consensus() {
  with_faults_reported(LoopAccess::state_of(run_), [&] { strategy_->consensus(); });
  return Shown(*strategy_);
}

DistributedOptimizer::Shown::~Shown() {
  strategy_.resume_training();
}

int64_t DistributedOptimizer::steps() const {
  return strategy_->steps();
}

std::map<std::string, double> DistributedOptimizer::statistics() {
  return with_faults_reported(LoopAccess::state_of(run_), [&] { return strategy_->statistics(); });
}

void Run::make_equal(const std::shared_ptr<torch::nn::Module>& module, const TensorPlan& plan) {
  with_faults_reported(*state_, [&] {
    RunState& state = *state_;
    if (state.sharded) state.sharded->require_whole(*module);
    load_initial(*module, state.resolved());
    state.has_replicated = true;
    if (!state.session) return;
    const RunEnvironment& environment = state.own_loop();
    Group& group = environment.group;
    if (group.size() == 1) return;
    LoopModel model;
    for (const auto& item : module->named_parameters()) model.frozen.push_back({item.key(), item.value()});
    for (const auto& item : module->named_buffers()) model.buffers.push_back({item.key(), item.value()});
    require_same_model(group, model);
    const at::NoGradGuard no_grad;
    for (auto* tensors : {&model.frozen, &model.buffers}) {
      for (NamedTensor& t : *tensors) broadcast_tensor(group, t.tensor, 0);
    }
    const RunSpec spec = loop_spec(state.resolved(), state.origins);
    if (parse_mesh(spec.train.mesh, spec.train.ranks).tensor == 1) return;
    require_own_loop(spec);
    if (!state.sharded)
      state.sharded =
          std::make_unique<ShardedModules>(state.own_axes(), environment.process.clock, spec.train.hash_every,
                                           [&state] { report_fault(state); });
    const auto warn = [&](const char* text) {
      environment.process.sink.emit(Message{Severity::kWarning, -1, text});
    };
    if (!plan.empty() && !has_rows(plan))
      warn(
          "the plan of Run::replicate() shards layers by columns and none by rows: a part of the program "
          "must take the part of the outputs that each rank computes. Otherwise add the layer by rows that "
          "follows, or gather the outputs (kGathered)");
    if (state.sharded->shard(module, plan)) return;
    warn(
        "each rank of the tensor axis holds the whole module: name its torch::nn::Linear layers in the "
        "plan of Run::replicate(), or make layers starling::Linear and starling::Conv2d");
  });
}

double Run::mean(double value) {
  return with_faults_reported(*state_, [&] {
    if (!state_->session) return value;
    Group& group = state_->own_loop().group;
    if (group.size() > 1) all_reduce(group, &value, 1, DataType::kFp64, ReduceOp::kAvg);
    return value;
  });
}

bool Run::stopping() const {
  return state_->loop.stopping;
}

int Run::replicas() const {
  const RunSpec& spec = state_->resolved();
  return static_cast<int>(parse_mesh(spec.train.mesh, spec.train.ranks).replica);
}

int Run::replica() const {
  const RunSpec& spec = state_->resolved();
  return static_cast<int>(place_of(parse_mesh(spec.train.mesh, spec.train.ranks), rank()).replica);
}

int Run::world_size() const {
  return static_cast<int>(state_->resolved().train.ranks);
}

}  // namespace starling
