#include "starling/parallel/pipeline/stage_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <set>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/pipeline/part_module.h"
#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/plan/balance.h"
#include "starling/plan/schedule_check.h"

namespace starling {
namespace {

void check_cut(const std::vector<size_t>& cut, int stages, size_t blocks) {
  bool fits = cut.size() == static_cast<size_t>(stages) + 1 && cut.front() == 0 && cut.back() == blocks;
  for (size_t s = 0; fits && s + 1 < cut.size(); ++s) fits = cut[s] < cut[s + 1];
  if (!fits) {
    throw ConfigError(
        "--mesh",
        fmt::format("the cut does not divide {} blocks into {} stages of at least one each", blocks, stages));
  }
}

void check_ranks(const Schedule& schedule, int ranks) {
  if (schedule.ranks != ranks) {
    throw ConfigError("--schedule", fmt::format("the schedule {} is for {} ranks, but the stage axis has {}",
                                                schedule.name, schedule.ranks, ranks));
  }
}

// Returns the type in which the gradients of a parameter are summed. A bfloat16 sum over many micro-batches
// would lose small gradients.
at::ScalarType sum_type(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kBFloat16 ? at::kFloat : parameter.scalar_type();
}

// The autograd node behind the loss. It returns the gradients that the schedule has already computed.
struct ScheduleBackward final : torch::autograd::Node {
  torch::autograd::variable_list gradients;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& of_loss) override {
    const double scale = of_loss.at(0).item<double>();
    if (scale != 1) {
      for (at::Tensor& g : gradients) g.mul_(scale);
    }
    return std::move(gradients);
  }
};

}  // namespace

StageModel::StageModel(const ModelFactory& factory, const StageModelOptions& options, Group& stages,
                       const Clock& clock)
    : options_(options), group_(stages), clock_(clock) {
  check_ranks(options_.schedule, stages.size());
  const ScheduleFacts facts = check_schedule(options_.schedule);
  live_ = *std::max_element(facts.live.begin(), facts.live.end());
  choose_cut(factory);
  whole_ = make_replica(factory, options_.type, options_.seed);
  if (whole_.model.loss.weighted()) {
    throw ConfigError(
        "Run::fit",
        "a pipeline computes the gradients of a micro-batch before it knows the weights of the "
        "next one, so its loss cannot be a WeightedLoss; return the mean of the micro-batch, or "
        "train without stages");
  }
  place_parameters();
  share_initial_values();
  make_part();
  run_ = std::make_unique<ScheduleExecutor>(options_.schedule, cut_, whole_.model, options_.type,
                                            options_.activations, stages, clock);
  run_->set_pace(options_.pace);
}

StageModel::~StageModel() = default;

// Uses a separate model, because measuring runs its blocks.
void StageModel::choose_cut(const ModelFactory& factory) {
  const Replica replica = make_replica(factory, options_.type, options_.seed);
  const Model& model = replica.model;
  const int stages = options_.schedule.stages();
  const std::vector<BlockTensors> tensors = tensors_of_blocks(model);
  if (!options_.cut.empty()) {
    check_cut(options_.cut, stages, tensors.size());
    cut_ = options_.cut;
    return;
  }
  std::map<std::string, int64_t> sizes;
  for (const NamedTensor& p : replica.parameters) sizes[p.name] = p.tensor.numel();
  std::vector<double> costs;
  for (const BlockTensors& block : tensors) {
    double cost = 1;
    for (const std::string& name : block.parameters) cost += static_cast<double>(sizes[name]);
    costs.push_back(cost);
  }
  if (group_.rank() == 0 && options_.sample.size() > 0) {
    costs = measure_blocks(model, inputs_of(model, options_.sample, options_.type, /*channels_last=*/false),
                           options_.sample.targets(), clock_);
  }
  broadcast(group_, costs.data(), costs.size(), DataType::kFp64, 0);
  cut_ = balance_stages(costs, stages);
}

void StageModel::place_parameters() {
  const Schedule& schedule = options_.schedule;
  const std::vector<BlockTensors> tensors = tensors_of_blocks(whole_.model);
  std::map<std::string, std::set<int>> holders;
  std::map<std::string, int> buffers;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (size_t b = cut_[stage]; b < cut_[stage + 1]; ++b) {
      for (const std::string& name : tensors[b].parameters) holders[name].insert(schedule.rank_of(stage));
      for (const std::string& name : tensors[b].buffers) buffers.emplace(name, schedule.rank_of(stage));
    }
  }
  for (NamedTensor& p : whole_.parameters) {
    Place place;
    place.holders.assign(holders[p.name].begin(), holders[p.name].end());
    place.sizes = p.tensor.sizes().vec();
    place.own = holders[p.name].count(group_.rank()) > 0;
    p.tensor.set_data(p.tensor.detach().contiguous());
    places_.push_back(std::move(place));
  }
  for (const NamedTensor& b : whole_.buffers) {
    const auto it = buffers.find(b.name);
    buffer_owners_.push_back(it == buffers.end() ? 0 : it->second);
  }
}

// Broadcasts the values of rank 0, whatever the factory made on other ranks.
void StageModel::share_initial_values() {
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  for (const NamedTensor& p : whole_.parameters)
    broadcast(group_, p.tensor.data_ptr(), p.tensor.numel(), data_type_of(p.tensor.scalar_type()), 0);
  for (NamedTensor& b : whole_.buffers) broadcast_tensor(group_, b.tensor, 0);
}

// The part's parameters are separate leaves. A schedule runs backward once per micro-batch, but gradient
// slots on the part must see one backward per step.
void StageModel::make_part() {
  const auto module = std::make_shared<PartModule>(whole_.model.module);
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].own) continue;
    places_[i].part = whole_.parameters[i].tensor.detach().requires_grad_();
    module->put_parameter(whole_.parameters[i].name, places_[i].part);
  }
  for (size_t i = 0; i < whole_.buffers.size(); ++i) {
    if (buffer_owners_[i] == group_.rank())
      module->put_buffer(whole_.buffers[i].name, whole_.buffers[i].tensor);
  }
  part_.module = module;
  part_.forward = [this](const Tensors& inputs) {
    inputs_ = inputs;
    return inputs;
  };
  part_.samples = whole_.model.samples;
  part_.exact_inputs = whole_.model.exact_inputs;
  part_.loss = [this](const Tensors&, const Tensors& targets) {
    Batch batch = make_batch(std::exchange(inputs_, {}), targets);
    if (part_.samples) batch.keys = part_.samples->keys;
    return loss_of(batch);
  };
}

ModelParts StageModel::parts() const {
  ModelParts parts;
  parts.group = &group_;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].own && places_[i].holders[0] != group_.rank())
      parts.counted_elsewhere.push_back(whole_.parameters[i].name);
  }
  return parts;
}

void StageModel::let_go_of_others() {
  if (!gathered_) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& p = whole_.parameters[i].tensor;
    // One element, expanded to the parameter's shape. Names, shapes and counts stay right.
    if (!places_[i].own) p.set_data(at::empty({}, p.options()).expand(places_[i].sizes));
  }
  gathered_ = false;
}

void StageModel::begin_step(int64_t step, bool wishes_stop, bool stops) {
  step_ = step;
  own_notice_ = {};
  own_notice_.wishes_stop = wishes_stop ? 1 : 0;
  own_notice_.stops = stops ? 1 : 0;
  let_go_of_others();
}

void StageModel::show_part() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].own) whole_.parameters[i].tensor.set_data(places_[i].part.detach());
  }
}

at::Tensor StageModel::loss_of(const Batch& batch) {
  show_part();
  if (!at::GradMode::is_enabled()) {
    double loss = run_->evaluate(batch, step_);  // 0 except on the last stage's rank
    if (group_.size() > 1) all_reduce(group_, &loss, 1, DataType::kFp64, ReduceOp::kSum);
    return at::scalar_tensor(loss, at::kDouble);
  }
  for (NamedTensor& p : whole_.parameters) p.tensor.mutable_grad().reset();
  sums_.assign(places_.size(), {});
  result_ = run_->run(batch, step_, [this] { add_to_sums(); });
  const Nanoseconds start = clock_.now();
  auto backward = c10::make_intrusive<ScheduleBackward>();
  backward->gradients = take_gradients();
  exchange_notices();
  wait_s_ = result_.wait_s + to_seconds(clock_.now() - start);
  for (const Place& place : places_) {
    if (place.own) backward->add_next_edge(torch::autograd::impl::gradient_edge(place.part));
  }
  double sum = 0;  // n.loss is 0 except on the last stage's rank
  for (const StageNotice& n : notices_) sum += n.loss;
  at::Tensor loss = at::scalar_tensor(sum, at::kDouble);
  torch::autograd::set_history(loss, backward);
  return loss;
}

// Sums the gradients of bfloat16 parameters. torch sums all other gradients in parameter.grad().
void StageModel::add_to_sums() {
  if (options_.type != at::kBFloat16) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& p = whole_.parameters[i].tensor;
    if (!places_[i].own || !p.grad().defined() || p.scalar_type() != at::kBFloat16) continue;
    if (sums_[i].defined()) {
      sums_[i].add_(p.grad());
    } else {
      sums_[i] = p.grad().to(at::kFloat);
    }
    p.mutable_grad().reset();
  }
}

// Returns the mean over the micro-batches of the gradients of this rank's parameters.
std::vector<at::Tensor> StageModel::take_gradients() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].own) continue;
    at::Tensor& p = whole_.parameters[i].tensor;
    at::Tensor& sum = p.grad().defined() ? p.mutable_grad() : sums_[i];
    gradients[i] = sum.defined() ? sum.contiguous() : at::zeros(p.sizes(), p.options().dtype(sum_type(p)));
    sum.reset();
  }
  add_tied(gradients);
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    own.push_back(
        gradients[i].div_(options_.schedule.micro_batches).to(whole_.parameters[i].tensor.scalar_type()));
  }
  return own;
}

// The first holder sums in the order of the ranks and sends the sum back. All ranks visit the parameters in
// one order, so no two ranks wait for each other.
void StageModel::add_tied(std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const std::vector<int>& holders = places_[i].holders;
    if (holders.size() < 2 || !places_[i].own) continue;
    at::Tensor& sum = gradients[i];
    if (group_.rank() != holders[0]) {
      send(group_, sum.data_ptr(), sum.nbytes(), holders[0], kTiedTag);
      recv(group_, sum.data_ptr(), sum.nbytes(), holders[0], kTiedTag);
      continue;
    }
    at::Tensor other = at::empty_like(sum);
    for (size_t h = 1; h < holders.size(); ++h) {
      recv(group_, other.data_ptr(), other.nbytes(), holders[h], kTiedTag);
      sum.add_(other);
    }
    for (size_t h = 1; h < holders.size(); ++h)
      send(group_, sum.data_ptr(), sum.nbytes(), holders[h], kTiedTag);
  }
}

void StageModel::share_tied() {
  at::NoGradGuard no_grad;
  for (const Place& place : places_) {
    if (place.holders.size() < 2 || !place.own) continue;
    at::Tensor value = place.part.detach().contiguous();
    if (group_.rank() != place.holders[0]) {
      recv(group_, value.data_ptr(), value.nbytes(), place.holders[0], kTiedTag);
      if (value.data_ptr() != place.part.data_ptr()) place.part.detach().copy_(value);
      continue;
    }
    for (size_t h = 1; h < place.holders.size(); ++h)
      send(group_, value.data_ptr(), value.nbytes(), place.holders[h], kTiedTag);
  }
}

void StageModel::exchange_notices() {
  StageNotice own = own_notice_;
  own.loss = result_.loss;
  own.busy_s = result_.busy_s;
  own.span_s = result_.span_s;
  own.payload_bytes = static_cast<double>(result_.payload_bytes);
  own.ranged_values = static_cast<double>(result_.ranged_values);
  own.saturated_values = static_cast<double>(result_.saturated_values);
  own.exceeds_limit = ranges() != nullptr && ranges()->exceeds_limit() ? 1 : 0;
  double count = 0;
  for (const MeasuredAction& a : run_->timeline()) {
    const double seconds = static_cast<double>(a.end_ns - a.begin_ns) * 1e-9;
    if (a.action.kind == ActionKind::kForward) own.forward_s += seconds;
    if (a.action.kind == ActionKind::kBackward) own.backward_s += seconds;
    if (a.action.kind == ActionKind::kForward) ++count;
  }
  own.forward_s /= count;
  own.backward_s /= count;
  notices_.assign(group_.size(), own);
  if (group_.size() > 1)
    all_gather(group_, &own, notices_.data(), sizeof(StageNotice) / sizeof(double), DataType::kFp64);
  const auto exceeds = [](const StageNotice& notice) { return notice.exceeds_limit > 0; };
  if (std::any_of(notices_.begin(), notices_.end(), exceeds)) ranges()->restart();
}

void StageModel::gather() {
  at::NoGradGuard no_grad;
  show_part();
  gathered_ = true;
  if (group_.size() == 1) return;
  const auto send_to_all = [&](at::Tensor& value, int root) {
    broadcast(group_, value.data_ptr(), value.numel(), data_type_of(value.scalar_type()), root);
  };
  for (size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    at::Tensor& p = whole_.parameters[i].tensor;
    const int owner = place.holders[0];
    if (!place.own) {
      p.set_data(at::empty(place.sizes, p.options()));
      at::Tensor value = p.detach();
      send_to_all(value, owner);
    } else {  // this rank's copy is equal already and stays
      at::Tensor value =
          group_.rank() == owner ? p.detach().contiguous() : at::empty(place.sizes, p.options());
      send_to_all(value, owner);
    }
  }
  for (size_t i = 0; i < whole_.buffers.size(); ++i)
    broadcast_tensor(group_, whole_.buffers[i].tensor, buffer_owners_[i]);
}

}  // namespace starling
