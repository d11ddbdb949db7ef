#include "starling/parallel/loop_strategy.h"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <exception>
#include <string_view>
#include <utility>

#include "starling/base/error.h"
#include "starling/parallel/exchange_makers.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/server/service_settings.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/emulation.h"
#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

// A module that holds tensors under given names.
class NamedTensors : public torch::nn::Module {
 public:
  explicit NamedTensors(const LoopModel& model) {
    for (const NamedTensor& p : model.parameters)
      place(p.name).own().register_parameter(last(p.name), p.tensor);
    for (const NamedTensor& b : model.buffers) place(b.name).own().register_buffer(last(b.name), b.tensor);
  }
  NamedTensors() = default;

 private:
  static std::string last(const std::string& name) { return name.substr(name.rfind('.') + 1); }
  torch::nn::Module& own() { return *this; }
  // Returns the module that holds the tensor `name`, and makes it if there is none.
  NamedTensors& place(std::string_view name) {
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return *this;
    const std::string child(name.substr(0, dot));
    if (!named_children().contains(child)) register_module(child, std::make_shared<NamedTensors>());
    return dynamic_cast<NamedTensors&>(*named_children()[child]).place(name.substr(dot + 1));
  }
};

// The type in which the parameters are exchanged. Errors: ConfigError if they have several types, or another
// one than float and double.
at::ScalarType type_of(const std::vector<NamedTensor>& parameters) {
  if (parameters.empty()) {
    throw ConfigError("DistributedOptimizer",
                      "the optimizer has no parameter of the module that requires a gradient");
  }
  const at::ScalarType type = parameters.front().tensor.scalar_type();
  for (const NamedTensor& p : parameters) {
    if (p.tensor.scalar_type() == type && (type == at::kFloat || type == at::kDouble)) continue;
    throw ConfigError(p.name,
                      fmt::format("is {}; all parameters of an own loop must be float, or all double. For "
                                  "lower precision use autocast",
                                  c10::toString(p.tensor.scalar_type())));
  }
  return type;
}

// Gives every rank the frozen parameters and buffers of rank 0.
void begin_equal(Group& group, LoopModel& model) {
  if (group.size() == 1) return;
  require_same_model(group, model);
  const at::NoGradGuard no_grad;
  for (auto* tensors : {&model.frozen, &model.buffers}) {
    for (NamedTensor& t : *tensors) broadcast_tensor(group, t.tensor, 0);
  }
}

}  // namespace

void require_same_model(Group& group, const LoopModel& model, SameModel same) {
  std::string text;
  for (const auto* tensors : {&model.parameters, &model.frozen, &model.buffers}) {
    for (const NamedTensor& t : *tensors) {
      text += fmt::format("{} {}", t.name, c10::toString(t.tensor.scalar_type()));
      for (const int64_t size : t.tensor.sizes()) {
        if (same == SameModel::kShapes) text += fmt::format(" {}", size);
      }
      text += ';';
    }
  }
  const uint64_t own = std::hash<std::string_view>()(text);
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), 1, DataType::kInt64);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw ConfigError(
        "DistributedOptimizer",
        fmt::format("the model of rank {} differs from that of rank 0 in the name, shape or type of "
                    "a tensor; make the same model and optimizer on every rank",
                    r));
  }
}

void require_own_optimizer(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if ((mesh.stage > 1 || mesh.tensor > 1) && exchange_traits(spec).servers)
    throw ConfigError("train.mesh",
                      "servers make the updates of a program's own optimizer for whole models; leave out "
                      "--mesh, or use another --exchange");
  if (spec.train.threads_mode != ThreadsMode::kOp)
    throw ConfigError("train.threads_mode", "a program's own loop or optimizer needs \"op\"");
  if (spec.train.hybrid != "none")
    throw ConfigError("train.hybrid",
                      "a program's own loop or optimizer trains whole models; use \"none\", or train "
                      "by Run::fit() without an own optimizer");
#ifdef STARLING_OWN_LOOPS_ONLY
  // Arrays of NumPy would show memory that is freed later.
  if (spec.train.shard == Shard::kParameters)
    throw ConfigError(
        "train.shard",
        "a loop in Python keeps whole parameters on every rank; use \"gradients\", or PyTorch's "
        "fully_shard on the backend \"starling\"");
#endif
  if (spec.train.on_failure == OnFailure::kContinue)
    throw ConfigError("train.on_failure",
                      "a run with an own loop or optimizer ends if a rank is lost, and resumes from its "
                      "checkpoint; use \"stop\"");
  const ExchangeTraits& exchange = exchange_traits(spec);
  if (!exchange.own_loop)
    throw ConfigError(
        "exchange.name",
        fmt::format("{} updates by the optimizer of the configuration, and not by that of a "
                    "program; use another exchange, or train by Run::fit() without an own optimizer",
                    exchange.name));
}

RunSpec loop_spec(RunSpec spec, const Origins& origins) {
  if (!is_given(origins, "exchange.block_momentum")) spec.exchange.block_momentum = 0;
  return spec;
}

void require_own_loop(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (mesh.stage > 1)
    throw ConfigError(
        "train.mesh",
        "an own loop computes all layers on each rank; leave out stage, or train by Run::fit()");
#ifdef STARLING_OWN_LOOPS_ONLY
  if (mesh.tensor > 1)
    throw ConfigError("train.mesh",
                      "a loop in Python keeps whole layers on every rank; leave out tensor, or use PyTorch's "
                      "parallelize_module on the backend \"starling\"");
#endif
  require_own_optimizer(spec);
  if (spec.train.precision == Precision::kBf16)
    throw ConfigError("train.precision",
                      "the types of an own loop are those of its model; use torch::autocast");
  if (parse_emulation(spec.train.emulate).any())
    throw ConfigError("train.emulate",
                      "an own loop computes by itself, so that slow-rank, jitter and compute have no effect; "
                      "leave them out, or train by Run::fit()");
  if (has_unequal_shares(spec))
    throw ConfigError("data.share",
                      "a loop of your own divides each batch equally; leave it out, or train by Run::fit()");
  if (spec.train.accumulate > 1)
    throw ConfigError(
        "train.accumulate",
        "an own loop accumulates by itself: call backward() for each part, and step() after the "
        "last; leave it out");
  const ExchangeTraits& exchange = exchange_traits(spec);
  if (exchange.shuffles_samples && spec.exchange.combine == "best")
    throw ConfigError("exchange.combine", "an own loop has no held-out samples; use average");
  if (exchange.shuffles_samples && spec.exchange.rounds > 0)
    throw ConfigError("exchange.rounds",
                      "the length of an own loop is not known; use exchange.every, the steps of a round");
}

LoopStrategy::LoopStrategy(const RunSpec& spec, const LoopPlace& place, LoopModel model,
                           std::shared_ptr<OwnOptimizer> optimizer)
    : spec_(spec), place_(place), model_(std::move(model)), optimizer_(std::move(optimizer)) {
  require_own_loop(spec_);
  const at::ScalarType type = type_of(model_.parameters);
  spec_.train.precision = type == at::kDouble ? Precision::kFp64 : Precision::kFp32;
  if (model_.device && spec_.train.shard == Shard::kParameters)
    throw ConfigError("train.shard",
                      "a module on a device is whole on each rank; use --shard gradients, or keep the module "
                      "in host memory");
  if (model_.device && parse_mesh(spec_.train.mesh, spec_.train.ranks).tensor > 1)
    throw ConfigError("train.mesh",
                      "a module on a device is whole on each rank; leave out the tensor axis, or keep the "
                      "module in host memory");
  if (place.sharding == nullptr && parse_mesh(spec_.train.mesh, spec_.train.ranks).tensor > 1)
    throw ConfigError("train.mesh",
                      "the layers of the module are whole on each rank; pass the module to Run::replicate(), "
                      "which shards them, before you make its optimizer");
  if (place.sharding != nullptr) {
    if (!optimizer_->elementwise())
      throw ConfigError(
          "train.mesh",
          "the optimizer is none of libtorch's that update each element by itself (SGD, Adam, "
          "AdamW, Adagrad, RMSprop), so it cannot train sharded layers: leave out tensor, or use "
          "one of them");
    place.sharding->begin_equal(model_);
  }
  begin_equal(replicas(), model_);
  const ModelFactory factory = [this] {
    return Model{std::make_shared<NamedTensors>(model_), nullptr, nullptr};
  };
  FlatReplicaOptions replica;
  replica.master = replica.working = type;
  replica.clip_norm = spec_.optimizer.clip_norm;
  replica.clip_value = spec_.optimizer.clip_value;
  replica.seed = spec_.train.seed;
  replica.rank = place.group.job_rank(place.group.rank());
  replica.own_gradients = true;
  replica.optimizer = [this](const std::vector<NamedTensor>&) { return optimizer_; };
  const auto exchange = [&](const ModelFactory& of, const ModelParts& shared) {
    replica.parts = shared;
    ExchangeParts parts{spec_, of, replicas(), place.clock, replica, shared.group != nullptr};
    parts.servers = next_service();
    return make_exchange(parts);
  };
  strategy_ =
      place.sharding != nullptr ? place.sharding->make_strategy(factory, exchange) : exchange(factory, {});
  if (exchange_traits(spec_).servers) {
    place_.loop.ended.reset();
    place_.loop.leaves[this] = [this] { strategy_->recoverable()->leave(); };
  }
  for (size_t i = 0; i < model_.parameters.size(); ++i)
    place_.loop.updated.insert(parameter_of_module(i).unsafeGetTensorImpl());
  if (model_.device) {
    model_.device->send_frozen();
    model_.device->send_buffers();
  }
  begin_step();
  place_.loop.batches[this] = [this](bool borrowed) { begin_batch(borrowed); };
}

LoopStrategy::~LoopStrategy() {
  place_.loop.batches.erase(this);
  for (size_t i = 0; i < model_.parameters.size(); ++i)
    place_.loop.updated.erase(parameter_of_module(i).unsafeGetTensorImpl());
  if (place_.loop.leaves.erase(this) > 0 && std::uncaught_exceptions() == 0)
    place_.loop.ended = std::move(strategy_);
}

// Returns the access to the servers of this strategy, which are those of no other strategy.
ServerAccess LoopStrategy::next_service() const {
  ServerAccess servers = place_.servers;
  if (!exchange_traits(spec_).servers) return servers;
  servers.rendezvous = rendezvous_of_service(servers.rendezvous, place_.loop.services++);
  servers.worker = place_.group.rank();
  servers.loads = servers.worker == 0;
  return servers;
}

const at::Tensor& LoopStrategy::parameter_of_module(size_t i) const {
  return model_.device ? model_.device->parameters()[i].device : model_.parameters[i].tensor;
}

const at::Tensor& LoopStrategy::frozen_of_module(size_t i) const {
  return model_.device ? model_.device->frozen()[i].device : model_.frozen[i].tensor;
}

// Sends the parameters and buffers, after the strategy has changed them.
void LoopStrategy::send_model() {
  if (!model_.device) return;
  model_.device->send();
  model_.device->send_buffers();
}

void LoopStrategy::begin_step() {
  begun_ = false;
  strategy_->begin_step({step_ + 1, optimizer_->lr(), place_.stop});
  if (model_.device) model_.device->send();  // servers and some exchanges change parameters here
  begun_ = true;
}

// Throws the error of resume_training(), or starts the step that it did not start.
void LoopStrategy::require_resumed() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  if (!begun_) begin_step();
}

// A parameter that was frozen when the strategy was made is not exchanged.
void LoopStrategy::require_known_gradients() const {
  for (size_t i = 0; i < model_.frozen.size(); ++i) {
    const at::Tensor& tensor = frozen_of_module(i);
    if (!tensor.grad().defined() || place_.loop.updated.contains(tensor.unsafeGetTensorImpl())) continue;
    throw ConfigError(model_.frozen[i].name,
                      "has a gradient, but it was frozen or no parameter of the optimizer when the "
                      "DistributedOptimizer was made; make a new optimizer and a new DistributedOptimizer");
  }
}

// After synchronize() the strategy updates by the gradients that it has exchanged.
void LoopStrategy::require_taken_gradients() const {
  for (size_t i = 0; i < taken_from_.size(); ++i) {
    const at::Tensor& gradient = model_.parameters[i].tensor.grad();
    if (gradient.defined() && gradient.const_data_ptr() == taken_from_[i]) continue;
    throw ConfigError(model_.parameters[i].name,
                      "its gradient was replaced after synchronize(); change it in place, or call "
                      "DistributedOptimizer::zero_grad() to leave out the update");
  }
}

void LoopStrategy::weigh(double weight) {
  if (taken_)
    throw ConfigError("DistributedOptimizer::weigh",
                      "synchronize() has exchanged the gradients of this step; call weigh() before it");
  if (!std::isfinite(weight) || weight < 0)
    throw Error(
        ErrorCode::kNumeric,
        fmt::format("DistributedOptimizer::weigh: the weight {} is not a number of 0 or more", weight));
  weight_ = weight_.value_or(0) + (place_.loop.borrows() ? 0 : weight);
}

// At the end of an epoch a rank may have no sample. It then computes with a sample of another rank, whose
// gradient does not count. The gradients that it has accumulated before count unless a step has used them.
void LoopStrategy::begin_batch(bool borrowed) {
  drop_borrowed();
  if (!borrowed) {
    accumulated_ = true;
    return;
  }
  before_borrowed_.emplace(model_.parameters.size());
  if (model_.device) model_.device->fetch_gradients();
  for (size_t i = 0; accumulated_ && i < model_.parameters.size(); ++i) {
    const at::Tensor& gradient = model_.parameters[i].tensor.grad();
    if (gradient.defined()) (*before_borrowed_)[i] = gradient.clone();
  }
}

void LoopStrategy::drop_borrowed() {
  if (!before_borrowed_) return;
  if (model_.device) model_.device->fetch_gradients();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < before_borrowed_->size(); ++i) {
    at::Tensor& gradient = model_.parameters[i].tensor.mutable_grad();
    const at::Tensor& before = (*before_borrowed_)[i];
    if (!gradient.defined()) continue;
    before.defined() ? gradient.copy_(before) : gradient.zero_();
  }
  if (model_.device) model_.device->send_gradients();
  before_borrowed_.reset();
}

// Returns how the gradients of this rank count. Collective if they are weighed and the ranks step together.
OwnStep LoopStrategy::own_step() const {
  const int ranks = replicas().size();
  OwnStep own{optimizer_->lr(), place_.loop.weight(ranks)};
  if (!weight_) return own;
  const double mine = own.weight == 0 ? 0 : *weight_;  // a rank without samples has that of another rank
  double total = mine;
  own.weight = mine > 0 ? 1 : 0;
  own.scale = mine > 0 ? 1 / mine : 0;
  if (ranks == 1 || !in_lockstep(spec_)) return own;
  all_reduce(replicas(), &total, 1, DataType::kFp64, ReduceOp::kSum);
  own.weight = total > 0 ? mine * ranks / total : 0;
  return own;
}

void LoopStrategy::take_gradients() {
  if (taken_) return;
  require_resumed();
  drop_borrowed();
  if (model_.device) {
    model_.device->fetch_gradients();
    model_.device->fetch_changes();
  }
  require_known_gradients();
  if (exchange_traits(spec_).servers && !optimizer_->rates_share_a_factor()) {
    throw ConfigError("exchange.name",
                      "the learning rates of the optimizer's groups have changed by different factors, and "
                      "the servers know one factor only; change all of them by one factor, or use "
                      "--exchange all-reduce");
  }
  strategy_->own_loop()->take_gradients(own_step());
  place_.loop.use();
  taken_ = true;
  taken_from_.clear();
  for (const NamedTensor& p : model_.parameters) taken_from_.push_back(p.tensor.grad().const_data_ptr());
}

void LoopStrategy::synchronize() {
  take_gradients();
  strategy_->own_loop()->synchronize();
  if (model_.device) model_.device->send_gradients();
}

void LoopStrategy::step() {
  if (taken_ && model_.device) {  // the program may have clipped the gradients
    model_.device->fetch_gradients();
    model_.device->fetch_changes();
  }
  if (taken_) require_taken_gradients();
  take_gradients();
  const StepReport report = strategy_->update();
  if (report.stop) place_.loop.stopping = true;
  ++step_;
  forget_gradients();
  begin_step();
  // The optimizer of the program has copies or parts of the parameters, so its zero_grad() clears no
  // gradient. An exchange of one host shares the parameters between its ranks.
  const bool apart = spec_.train.shard != Shard::kNone || exchange_traits(spec_).one_host;
  if (model_.device || apart) clear_gradients();
}

void LoopStrategy::clear_gradients() {
  if (model_.device) model_.device->clear_gradients();
  for (NamedTensor& p : model_.parameters) p.tensor.mutable_grad().reset();
}

void LoopStrategy::zero_grad() {
  clear_gradients();
  const bool borrowed = before_borrowed_.has_value();
  forget_gradients();
  if (borrowed) before_borrowed_.emplace(model_.parameters.size());  // its backward pass may come yet
}

// Forgets what the strategy knows of the gradients so far.
void LoopStrategy::forget_gradients() {
  before_borrowed_.reset();
  accumulated_ = taken_ = false;
  weight_.reset();
}

void LoopStrategy::consensus() {
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
  begun_ = false;
  if (model_.device) {
    model_.device->fetch_changes();
    model_.device->fetch_buffers();
  }
  strategy_->consensus();
  send_model();
}

void LoopStrategy::resume_training() noexcept {
  if (std::uncaught_exceptions() > 0) return;
  try {
    begin_step();
    if (model_.device) model_.device->send_buffers();
  } catch (...) {  // a destructor calls this function
    failed_ = std::current_exception();
  }
}

StrategyState LoopStrategy::state() {
  if (model_.device) model_.device->fetch_frozen();
  StrategyState state = strategy_->state();
  state.step = step_;
  // Every rank reads each parameter, because another strategy may have divided it (zero/parameter_unit.h).
  std::map<std::string, at::Tensor> frozen;
  for (const NamedTensor& p : model_.frozen) {
    const at::Tensor whole = p.tensor.detach();
    if (place_.sharding != nullptr || !state.parameters.empty())
      frozen[p.name] = whole.clone(at::MemoryFormat::Contiguous);
  }
  if (place_.sharding != nullptr) frozen = place_.sharding->whole(frozen);
  if (!state.parameters.empty()) state.parameters.merge(frozen);
  return state;
}

void LoopStrategy::load_state(const StrategyState& state) {
  const at::NoGradGuard no_grad;
  if (!model_.frozen.empty()) {
    const auto own = place_.sharding != nullptr ? place_.sharding->parts(state.parameters) : state.parameters;
    for (NamedTensor& p : model_.frozen) p.tensor.copy_(fitting(own, p.name, p.tensor));
    if (model_.device) model_.device->send_frozen();
  }
  strategy_->load_state(state);
  send_model();
  step_ = state.step;
  forget_gradients();
  begin_step();
}

StrategyStats LoopStrategy::statistics() {
  return strategy_->strategy_stats();
}

}  // namespace starling
