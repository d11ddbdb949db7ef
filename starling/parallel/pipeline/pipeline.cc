#include "starling/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/plan/balance.h"
#include "starling/plan/schedule_check.h"
#include "starling/plan/schedule_simulation.h"

namespace starling {
namespace {

constexpr uint32_t kTiedTag = 0x51000000u;

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
    throw ConfigError("--schedule",
                      fmt::format("the table of {} is for {} ranks, but there are {} on the stage axis",
                                  schedule.name, schedule.ranks, ranks));
  }
}

}  // namespace

Pipeline::Pipeline(const ModelFactory& factory, UpdateRule rule, const PipelineOptions& options, Group& group,
                   const Clock& clock)
    : options_(options), rule_(std::move(rule)), group_(group), clock_(clock) {
  check_ranks(options_.schedule, group.size());
  const ScheduleFacts facts = check_schedule(options_.schedule);
  live_ = *std::max_element(facts.live.begin(), facts.live.end());
  choose_cut(factory);
  replica_ = make_replica(factory, options_.master, options_.seed);
  block_tensors_ = tensors_of_blocks(replica_.model);
  place_parameters();
  share_initial_values();
  run_ = std::make_unique<TableRun>(options_.schedule, cut_, replica_.model, options_.master, group, clock);
}

Pipeline::~Pipeline() = default;

// On a model of its own: measuring runs it.
void Pipeline::choose_cut(const ModelFactory& factory) {
  const Replica replica = make_replica(factory, options_.master, options_.seed);
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
  double measured = group_.rank() == 0 && options_.sample.size() > 0 ? 1 : 0;
  if (measured > 0) {
    const at::Tensor& input = options_.sample.input;
    costs = measure_blocks(model, input.is_floating_point() ? input.to(options_.master) : input,
                           options_.sample.target, clock_);
  }
  group_.broadcast(costs.data(), costs.size(), DataType::kFp64, 0);
  cut_ = balance_stages(costs, stages);
}

void Pipeline::place_parameters() {
  const Schedule& schedule = options_.schedule;
  std::map<std::string, std::set<int>> holders;
  std::map<std::string, int> buffers;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (size_t b = cut_[stage]; b < cut_[stage + 1]; ++b) {
      for (const std::string& name : block_tensors_[b].parameters)
        holders[name].insert(schedule.rank_of(stage));
      for (const std::string& name : block_tensors_[b].buffers)
        buffers.emplace(name, schedule.rank_of(stage));
    }
  }
  for (NamedTensor& p : replica_.parameters) {
    Place place;
    place.holders.assign(holders[p.name].begin(), holders[p.name].end());
    place.sizes = p.tensor.sizes().vec();
    place.own = holders[p.name].count(group_.rank()) > 0;
    p.tensor.set_data(p.tensor.detach().contiguous());
    if (place.own) {
      for (int s = 0; s < rule_.state_count(); ++s) place.states.push_back(at::zeros_like(p.tensor.detach()));
    }
    places_.push_back(std::move(place));
  }
  for (const NamedTensor& b : replica_.buffers) {
    const auto it = buffers.find(b.name);
    buffer_owners_.push_back(it == buffers.end() ? 0 : it->second);
  }
}

// Those of rank 0, whatever the factory made elsewhere.
void Pipeline::share_initial_values() {
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  for (const NamedTensor& p : replica_.parameters)
    group_.broadcast(p.tensor.data_ptr(), p.tensor.numel(), data_type_of(p.tensor.scalar_type()), 0);
  for (NamedTensor& b : replica_.buffers) {
    at::Tensor value = b.tensor.contiguous();
    group_.broadcast(value.data_ptr(), value.numel(), data_type_of(value.scalar_type()), 0);
    b.tensor.copy_(value);
  }
}

std::vector<std::string> Pipeline::own_parameters() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].own) names.push_back(replica_.parameters[i].name);
  }
  return names;
}

void Pipeline::let_go_of_others() {
  if (!whole_) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& p = replica_.parameters[i].tensor;
    // One element that has the parameter's shape: names, shapes and counts stay right.
    if (!places_[i].own) p.set_data(at::empty({}, p.options()).expand(places_[i].sizes));
  }
  whole_ = false;
}

void Pipeline::begin_step(const Step& step) {
  step_ = step;
  let_go_of_others();
  for (NamedTensor& p : replica_.parameters) p.tensor.mutable_grad().reset();
}

double Pipeline::forward_backward(const Batch& batch) {
  result_ = run_->run(batch, step_.index);
  return result_.loss;
}

at::Tensor Pipeline::gradient_of(size_t parameter) {
  const at::Tensor& p = replica_.parameters[parameter].tensor;
  return p.grad().defined() ? p.grad().contiguous() : at::zeros_like(p.detach());
}

// Gradients of a parameter that several ranks hold: the first of them adds them up in the order of the ranks and sends the
// sum back. All ranks go through the parameters in one order, so no two wait for each other.
void Pipeline::add_tied_gradients() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    const std::vector<int>& holders = places_[i].holders;
    if (holders.size() < 2 || !places_[i].own) continue;
    at::Tensor& p = replica_.parameters[i].tensor;
    at::Tensor sum = gradient_of(i).clone();
    if (group_.rank() != holders[0]) {
      group_.send(sum.data_ptr(), sum.nbytes(), holders[0], kTiedTag);
      group_.recv(sum.data_ptr(), sum.nbytes(), holders[0], kTiedTag);
    } else {
      at::Tensor other = at::empty_like(sum);
      for (size_t h = 1; h < holders.size(); ++h) {
        group_.recv(other.data_ptr(), other.nbytes(), holders[h], kTiedTag);
        sum.add_(other);
      }
      for (size_t h = 1; h < holders.size(); ++h)
        group_.send(sum.data_ptr(), sum.nbytes(), holders[h], kTiedTag);
    }
    p.mutable_grad() = sum;
  }
}

// The factor of the update: 1/m, and clipping (Pascanu et al., arXiv 1211.5063). Squares are added up by parameter, so that
// the norm does not depend on the cut.
double Pipeline::clip_scale() {
  const double mean = 1.0 / options_.schedule.micro_batches;
  if (options_.clip_norm <= 0) return mean;
  std::vector<double> squares(places_.size(), 0);
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].holders[0] != group_.rank()) continue;
    squares[i] = gradient_of(i).to(at::kDouble).mul(mean).square().sum().item<double>();
  }
  if (group_.size() > 1) group_.all_reduce(squares.data(), squares.size(), DataType::kFp64, ReduceOp::kSum);
  double sum = 0;
  for (double s : squares) sum += s;
  const double norm = std::sqrt(sum);
  return norm > options_.clip_norm ? mean * options_.clip_norm / (norm + 1e-6) : mean;
}

template <typename T>
void Pipeline::apply(size_t parameter, double scale) {
  const at::Tensor gradient = gradient_of(parameter);
  at::Tensor p = replica_.parameters[parameter].tensor.detach();
  const T* gradients[] = {gradient.const_data_ptr<T>()};
  std::vector<T*> states;
  for (const at::Tensor& s : places_[parameter].states) states.push_back(s.mutable_data_ptr<T>());
  UpdateArgs<T, T> args;
  args.gradients = gradients;
  args.gradient_scale = scale;
  args.parameter = args.parameter_out = p.mutable_data_ptr<T>();
  args.state = states.data();
  args.state_out = states.data();
  args.count = static_cast<size_t>(p.numel());
  rule_.apply(args, step_.lr, step_.index);
}

StepReport Pipeline::update() {
  const Nanoseconds start = clock_.now();
  add_tied_gradients();
  const double scale = clip_scale();
  const Nanoseconds exchanged = clock_.now();
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].own) continue;
    if (options_.master == at::kDouble) {
      apply<double>(i, scale);
    } else {
      apply<float>(i, scale);
    }
  }
  const Nanoseconds applied = clock_.now();
  StepReport report;
  read_notices(report);
  const Nanoseconds end = clock_.now();
  report.compute_s = result_.busy_s + to_seconds(applied - exchanged);
  report.exposed_comm_s = result_.wait_s + to_seconds(exchanged - start) + to_seconds(end - applied);
  return report;
}

void Pipeline::read_notices(StepReport& report) {
  Notice own{
      result_.loss,   step_.stop_requested ? 1.0 : 0.0,      result_.busy_s,
      result_.span_s, static_cast<double>(result_.begin_ns), static_cast<double>(result_.payload_bytes)};
  double count = 0;
  for (const MeasuredAction& a : run_->timeline()) {
    const double seconds = static_cast<double>(a.end_ns - a.begin_ns) * 1e-9;
    if (a.action.kind == ActionKind::kForward) own.forward_s += seconds;
    if (a.action.kind == ActionKind::kBackward) own.backward_s += seconds;
    if (a.action.kind == ActionKind::kForward) ++count;
  }
  own.forward_s /= count;
  own.backward_s /= count;
  notices_.assign(group_.size(), {});
  group_.all_gather(&own, notices_.data(), sizeof(Notice) / sizeof(double), DataType::kFp64);
  double busy = 0, span = 0, slowest = -1;
  for (int r = 0; r < group_.size(); ++r) {
    const Notice& n = notices_[r];
    report.loss += n.loss;  // known on the last stage's rank, 0 elsewhere
    report.stop = report.stop || n.stop > 0;
    busy += n.busy_s;
    span = std::max(span, n.span_s);
    if (n.busy_s > slowest && group_.size() > 1) {
      slowest = n.busy_s;
      report.slowest_rank = r;
    }
  }
  bubble_ = span > 0 ? 1 - busy / (group_.size() * span) : 0;
  if (++steps_seen_ > 1) bubble_sum_ += bubble_;
}

std::vector<std::pair<std::string, double>> Pipeline::fingerprint() const {
  const Schedule& schedule = options_.schedule;
  double planned = planned_bubble(schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches);
  if (planned < 0) planned = simulate_schedule(schedule, {}).bubble;
  double balanced = planned, bytes = 0;
  if (!notices_.empty()) {
    ScheduleCosts costs{std::vector<double>(schedule.stages()), std::vector<double>(schedule.stages()), 0};
    for (int s = 0; s < schedule.stages(); ++s) {
      costs.forward[s] = notices_[schedule.rank_of(s)].forward_s;
      costs.backward[s] = notices_[schedule.rank_of(s)].backward_s;
    }
    balanced = simulate_schedule(schedule, costs).bubble;
    for (const Notice& n : notices_) bytes += n.payload_bytes;
  }
  const double mean = steps_seen_ > 1 ? bubble_sum_ / static_cast<double>(steps_seen_ - 1) : bubble_;
  return {{"bubble", bubble_},           {"bubble_mean", mean},
          {"bubble_planned", planned},   {"bubble_balanced", balanced},
          {"stages", schedule.stages()}, {"micro_batches", schedule.micro_batches},
          {"live_activations", live_},   {"stage_bytes", bytes}};
}

}  // namespace starling
