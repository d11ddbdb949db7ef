#include "starling/run/loop/program_checkpoint.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/run/folder/run_folder.h"
#include "starling/run/loop/distributed_optimizer.h"
#include "starling/run/loop/rank_generators.h"
#include "starling/run/run_state.h"

namespace starling {
namespace {

constexpr const char* kEqual = "program";  // the coordinate of what all ranks have in common
constexpr const char* kSteps = "steps of optimizers/";
// The steps between two looks at the clock and at requests of signals, which are a reduction over the ranks.
constexpr int64_t kStepsBetweenLooks = 16;

// Adds the tensors of `from` to `into`, with a prefix before the name of each tensor.
void add_prefixed(const StrategyState& from, const std::string& prefix, StrategyState& into) {
  const auto put = [](std::map<std::string, at::Tensor>& tensors, const std::string& name,
                      const at::Tensor& tensor) {
    if (tensors.emplace(name, tensor).second) return;
    throw ConfigError("ProgramCheckpoint",
                      fmt::format("two optimizers save a tensor '{}'; give them other names", name));
  };
  for (const auto& [name, tensor] : from.parameters) put(into.parameters, prefix + name, tensor);
  for (const auto& [name, tensor] : from.buffers) put(into.buffers, prefix + name, tensor);
  for (const auto& [key, tensor] : from.optimizer) {  // "momentum/fc.weight"
    const size_t slash = key.find('/') + 1;
    into.optimizer[key.substr(0, slash) + prefix + key.substr(slash)] = tensor;
  }
}

// Returns the state that add_prefixed() has put into the checkpoint.
StrategyState without_prefix(const CheckpointState& checkpoint, const std::string& prefix, int64_t step) {
  StrategyState state;
  state.step = step;
  for (const auto& [name, stored] : checkpoint.model) {
    if (name.starts_with(prefix)) state.parameters[name.substr(prefix.size())] = stored.value;
  }
  state.buffers = state.parameters;  // each part looks up its own names
  for (const auto& [name, states] : checkpoint.optimizer) {
    if (!name.starts_with(prefix)) continue;
    for (const auto& [kind, stored] : states)
      state.optimizer[kind + "/" + name.substr(prefix.size())] = stored.value;
  }
  return state;
}

const at::Tensor& stored_tensor(const CheckpointState& checkpoint, const std::string& coordinate,
                                const std::string& name) {
  const auto rank = checkpoint.ranks.find(coordinate);
  if (rank != checkpoint.ranks.end()) {
    if (const auto found = rank->second.find(name); found != rank->second.end()) return found->second;
  }
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("the checkpoint has no '{}' of {}; it belongs to another program, to another version of it "
                  "or to another number of ranks. Give another checkpoint by --resume PATH, or --resume "
                  "never to start anew",
                  name, coordinate));
}

void copy_stored(const at::Tensor& stored, const std::string& name, at::Tensor& tensor) {
  if (stored.sizes() != tensor.sizes() || stored.scalar_type() != tensor.scalar_type()) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("'{}' has another shape or type in the checkpoint than in the program", name));
  }
  const at::NoGradGuard no_grad;
  tensor.copy_(stored);
}

}  // namespace

struct ProgramCheckpoint::State {
  // Something that was added: what all ranks have in common, or what each rank has for itself.
  struct Item {
    std::string name;
    bool per_rank = false;
    std::function<at::Tensor()> save;
    std::function<void(const at::Tensor&)> load;
  };
  struct Trained {
    std::string prefix;
    DistributedOptimizer& optimizer;
    LoopStrategy& strategy;
  };

  RunState& run;
  std::optional<RunSpec> spec = {};             // of the loop; the folder refers to it
  std::unique_ptr<RunFolder> folder = nullptr;  // null with --dry-run
  std::vector<Item> items = {};
  std::vector<Trained> trained = {};
  std::set<std::string> names = {};
  int64_t steps = 0;
  bool asked_to_resume = false;  // resume() was called
  bool warned = false;
  Nanoseconds last_save{};  // the time of the last checkpoint

  void take_name(const std::string& name) {
    if (asked_to_resume)
      throw ConfigError("ProgramCheckpoint",
                        fmt::format("'{}' is added after resume(), which has not restored it; add it before",
                                    name.empty() ? "an optimizer" : name));
    if (names.insert(name).second) return;
    throw ConfigError("ProgramCheckpoint", name.empty()
                                               ? "two optimizers have no name; name all but one of them"
                                               : fmt::format("'{}' is added twice", name));
  }
  void add_item(const std::string& name, bool per_rank, std::function<at::Tensor()> save,
                std::function<void(const at::Tensor&)> load) {
    take_name(name);
    items.push_back({name, per_rank, std::move(save), std::move(load)});
  }
  std::string coordinate(int rank) const { return fmt::format("{}@{}", kEqual, rank); }

  StrategyState trained_state();
  CheckpointState gather();
  // Throws ConfigError if nothing would be saved, or if the program ignores the checkpoint that it found.
  void require_use() const;
  void warn_without_steps();
  void write(bool must);
  // Returns whether the time for a checkpoint has come, or a signal asks for one, on any rank. Collective.
  bool asked();
  // Waits for the checkpoint and writes the weights. No rank returns before the files are written.
  // Collective.
  void finish(bool interrupted);
  void load(const CheckpointState& checkpoint);
};

StrategyState ProgramCheckpoint::State::trained_state() {
  StrategyState whole;
  for (Trained& t : trained) {
    t.strategy.consensus();
    const StrategyState own = t.strategy.state();
    add_prefixed(own, t.prefix, whole);
    t.strategy.resume_training();
  }
  return whole;
}

CheckpointState ProgramCheckpoint::State::gather() {
  const RunEnvironment& environment = run.own_loop();
  CheckpointState checkpoint = checkpoint_of(trained_state());
  checkpoint.step = checkpoint.batches = steps;
  checkpoint.ranks = generators_of_ranks(run.resolved(), environment.world_rank(), environment.group);
  for (const Trained& t : trained) {
    checkpoint.ranks[kEqual][kSteps + t.prefix] =
        at::scalar_tensor(t.strategy.steps(), at::kLong).reshape({1});
  }
  for (const Item& item : items) {
    const at::Tensor own = item.save().detach().to(at::kCPU).contiguous();
    if (!item.per_rank) {
      checkpoint.ranks[kEqual][item.name] = own.clone();
      continue;
    }
    const std::vector<at::Tensor> all = gather_flat(environment.group, own);
    for (size_t r = 0; r < all.size(); ++r)
      checkpoint.ranks[coordinate(static_cast<int>(r))][item.name] = all[r];
  }
  return checkpoint;
}

void ProgramCheckpoint::State::require_use() const {
  if (trained.empty())
    throw ConfigError("ProgramCheckpoint",
                      "nothing is saved without an optimizer; call add(optimizer) first");
  const CheckpointState* found = folder ? folder->resumed() : nullptr;
  const bool earlier = found != nullptr && found->lineage.incarnation != run.own_loop().kept.incarnation;
  if (earlier && !asked_to_resume)
    throw ConfigError(
        "ProgramCheckpoint",
        fmt::format("an earlier run has left a checkpoint of step {}, which the program has not "
                    "loaded: call resume() before the loop, or give --resume never to start "
                    "anew",
                    found->step));
}

// Ranks whose program steps its own optimizer train apart, and nothing else tells them.
void ProgramCheckpoint::State::warn_without_steps() {
  const bool stepped =
      std::any_of(trained.begin(), trained.end(), [](const Trained& t) { return t.strategy.steps() > 0; });
  if (stepped || steps == 0 || std::exchange(warned, true)) return;
  run.own_loop().process.sink.emit(
      Message{Severity::kWarning, -1,
              "no DistributedOptimizer has made a step so far, so the ranks have exchanged nothing: call its "
              "step() in place of that of your own optimizer"});
}

void ProgramCheckpoint::State::write(bool must) {
  if (!folder) return;
  require_use();
  folder->begin();  // if the program goes on without resume()
  warn_without_steps();
  if (steps == 0 && run.most_steps > 0 && !std::exchange(warned, true))
    run.own_loop().process.sink.emit(Message{
        Severity::kWarning, -1,
        fmt::format("ProgramCheckpoint::step() was not called in {} steps, so no checkpoint was written when "
                    "it was due, and this one counts as that of step 0: call it after each step",
                    run.most_steps)});
  last_save = run.own_loop().process.clock.now();
  folder->save_checkpoint(gather(), must);
}

bool ProgramCheckpoint::State::asked() {
  if (steps % kStepsBetweenLooks != 0) return false;
  const RunEnvironment& environment = run.own_loop();
  const double due_s = 60 * run.resolved().checkpoint.minutes;
  const bool due = due_s > 0 && folder->ready_to_save() &&
                   to_seconds(environment.process.clock.now() - last_save) >= due_s;
  const bool requested =
      environment.process.requests != nullptr && environment.process.requests->save.exchange(false);
  double asks = due || requested ? 1 : 0;
  if (environment.group.size() > 1) all_reduce(environment.group, &asks, 1, DataType::kFp64, ReduceOp::kSum);
  return asks > 0;
}

void ProgramCheckpoint::State::finish(bool interrupted) {
  folder->finish([this] { return trained_state(); }, interrupted, /*together=*/true,
                 {{"format", "pt"}, {"step", std::to_string(steps)}});
}

void ProgramCheckpoint::State::load(const CheckpointState& checkpoint) {
  const RunEnvironment& environment = run.own_loop();
  for (Trained& t : trained) {
    const auto step = stored_tensor(checkpoint, kEqual, kSteps + t.prefix).item<int64_t>();
    t.strategy.load_state(without_prefix(checkpoint, t.prefix, step));
  }
  for (const Item& item : items) {
    item.load(
        stored_tensor(checkpoint, item.per_rank ? coordinate(environment.world_rank()) : kEqual, item.name));
  }
  begin_generator(run.resolved(), environment.world_rank(), &checkpoint);
  steps = checkpoint.step;
}

ProgramCheckpoint::ProgramCheckpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProgramCheckpoint::ProgramCheckpoint(ProgramCheckpoint&&) noexcept = default;
ProgramCheckpoint::~ProgramCheckpoint() = default;

ProgramCheckpoint& ProgramCheckpoint::add(DistributedOptimizer& optimizer) {
  return add("", optimizer);
}

ProgramCheckpoint& ProgramCheckpoint::add(const std::string& name, DistributedOptimizer& optimizer) {
  with_faults_reported(state_->run, [&] {
    state_->take_name(name);
    state_->trained.push_back({name.empty() ? "" : name + ".", optimizer, *optimizer.strategy_});
  });
  return *this;
}

ProgramCheckpoint& ProgramCheckpoint::add(const std::string& name, DataLoader& loader) {
  with_faults_reported(state_->run, [&] {
    state_->add_item(
        name, false,
        [&loader] {
          return at::tensor({loader.position(), loader.batches_per_epoch(), int64_t{loader.open()}},
                            at::kLong);
        },
        [&loader, name](const at::Tensor& stored) {
          at::Tensor position = at::zeros({3}, at::kLong);
          copy_stored(stored, name, position);
          if (position[1].item<int64_t>() != loader.batches_per_epoch()) {
            throw ConfigError(
                "Run::loader",
                fmt::format("the loader '{}' has {} batches in an epoch, and {} when the checkpoint was "
                            "written; use the data and the batch of that run, or --resume never",
                            name, loader.batches_per_epoch(), position[1].item<int64_t>()));
          }
          loader.go_to(position[0].item<int64_t>(), position[2].item<int64_t>() != 0);
        });
  });
  return *this;
}

ProgramCheckpoint& ProgramCheckpoint::add(const std::string& name, int64_t& number) {
  with_faults_reported(state_->run, [&] {
    state_->add_item(
        name, false, [&number] { return at::scalar_tensor(number, at::kLong).reshape({1}); },
        [&number](const at::Tensor& stored) { number = stored.item<int64_t>(); });
  });
  return *this;
}

ProgramCheckpoint& ProgramCheckpoint::add(const std::string& name, double& number) {
  with_faults_reported(state_->run, [&] {
    state_->add_item(
        name, false, [&number] { return at::scalar_tensor(number, at::kDouble).reshape({1}); },
        [&number](const at::Tensor& stored) { number = stored.item<double>(); });
  });
  return *this;
}

ProgramCheckpoint& ProgramCheckpoint::add(const std::string& name, at::Tensor& tensor) {
  with_faults_reported(state_->run, [&] {
    state_->add_item(
        name, false, [&tensor] { return tensor; },
        [&tensor, name](const at::Tensor& stored) { copy_stored(stored, name, tensor); });
  });
  return *this;
}

ProgramCheckpoint& ProgramCheckpoint::add_per_rank(const std::string& name, at::Tensor& tensor) {
  with_faults_reported(state_->run, [&] {
    state_->add_item(
        name, true, [&tensor] { return tensor; },
        [&tensor, name](const at::Tensor& stored) { copy_stored(stored, name, tensor); });
  });
  return *this;
}

bool ProgramCheckpoint::resume() {
  return with_faults_reported(state_->run, [&] {
    state_->asked_to_resume = state_->run.loop_resumes = true;
    if (!state_->folder || state_->folder->resumed() == nullptr) return false;
    state_->load(*state_->folder->resumed());
    Group& group = state_->run.own_loop().group;
    if (group.size() > 1) barrier(group);  // the folder stays as it is if one rank refuses
    state_->folder->begin();
    return true;
  });
}

void ProgramCheckpoint::step() {
  with_faults_reported(state_->run, [&] {
    ++state_->steps;
    if (!state_->folder) return;
    state_->require_use();
    const int64_t every = state_->run.resolved().checkpoint.every;
    const bool asked = state_->asked();
    if (state_->run.loop.stopping) {
      if (state_->run.loop_saved) return;  // the program goes on in its own way
      state_->write(true);
      state_->finish(/*interrupted=*/true);
      state_->run.loop_saved = true;
    } else if (asked || (every > 0 && state_->steps % every == 0)) {
      state_->write(/*must=*/asked);
    }
  });
}

void ProgramCheckpoint::save() {
  with_faults_reported(state_->run, [&] {
    try {
      state_->write(true);
      if (state_->folder) state_->finish(/*interrupted=*/false);
      state_->run.has_saved = true;
    } catch (const CommError& error) {
      const std::string text = error.what();
      if (error.code() != ErrorCode::kComm || text.find(kLeftTheGroup) == std::string::npos) throw;
      throw CommError(text + "; all ranks call ProgramCheckpoint::save() together", error.peer());
    }
  });
}

int64_t ProgramCheckpoint::steps() const {
  return state_->steps;
}

ProgramCheckpoint Run::checkpoint() {
  return with_faults_reported(*state_, [&] {
    auto state = std::make_unique<ProgramCheckpoint::State>(ProgramCheckpoint::State{*state_});
    if (state_->session) {
      state->spec = loop_spec(state_->resolved(), state_->origins);
      state->folder = std::make_unique<RunFolder>(*state->spec, state_->own_loop());
      if (state->folder->resumed() == nullptr) state->folder->begin();
      state->last_save = state_->own_loop().process.clock.now();
    }
    return ProgramCheckpoint(std::move(state));
  });
}

}  // namespace starling
