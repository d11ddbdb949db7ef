#include "starling/parallel/tensor_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "starling/c10d/data_type.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/tensor_state.h"

namespace starling {
namespace {

constexpr uint32_t kTensorStateTag = 0x54000000u;
constexpr const char* kTransformerLayers = "transformer.h.";

using Named = std::map<std::string, at::Tensor>;

}  // namespace

TensorParallel::TensorParallel(ModelFactory factory, Group& tensor, std::vector<Group*> counting,
                               const Clock& clock, const MakeExchange& make_exchange)
    : clock_(clock), group_(tensor, clock), counting_(std::move(counting)) {
  const ModelFactory part = divided(std::move(factory));
  ModelParts parts;
  parts.group = &tensor;
  const Model probe = part();  // what is divided is known once there is a model
  for (const auto& p : probe.module->named_parameters()) {
    const auto slice = division_.slices.find(p.key());
    const bool whole = slice == division_.slices.end();
    if (whole && group_.rank() != 0) parts.counted_elsewhere.push_back(p.key());
    whole_parameters_ += whole ? p.value().numel() : c10::multiply_integers(slice->second.sizes);
  }
  exchange_ = make_exchange(part, parts);
}

ModelFactory TensorParallel::divided(ModelFactory factory) {
  return [this, factory = std::move(factory)] {
    Model model = factory();
    division_ = divide_model(model, group_);
    return model;
  };
}

uint64_t TensorParallel::counted_bytes() const {
  uint64_t bytes = 0;
  for (const Group* group : counting_) {
    const TrafficCount traffic = group->traffic();
    bytes += traffic.socket_sent + traffic.window_written;
  }
  return bytes;
}

void TensorParallel::begin_step(const Step& step) {
  step_ = step.index;
  bytes_before_ = counted_bytes();
  Step agreed = step;
  double stop = step.stop_requested ? 1 : 0;
  group_.group().all_reduce(&stop, 1, DataType::kFp64, ReduceOp::kMax);
  agreed.stop_requested = stop > 0;
  group_.reset_traffic();
  exchange_.strategy->begin_step(agreed);
}

double TensorParallel::forward_backward(const Batch& batch) {
  tokens_ = batch.input.dim() > 1 ? batch.input.size(0) * batch.input.size(1) : batch.size();
  return exchange_.strategy->forward_backward(batch);
}

StepReport TensorParallel::update() {
  StepReport report = exchange_.strategy->update();
  report.exposed_comm_s += group_.seconds();
  report.compute_s = std::max(0.0, report.compute_s - group_.seconds());
  report.bytes_sent += counted_bytes() - bytes_before_;
  traffic_ = group_.traffic();
  return report;
}

void TensorParallel::consensus() {
  exchange_.strategy->consensus();
}

// On rank 0 the whole tensors; the others send their parts. Names are the same on all ranks, in the same order. What has not the
// sizes of a part (ADMM's penalty, kept under a parameter's name) is no part and equal on all ranks.
Named TensorParallel::whole_of(const Named& parts) {
  Group& group = group_.group();
  Named whole;
  for (const auto& [name, tensor] : parts) {
    const auto slice = division_.slices.find(parameter_of_state(name));
    if (slice == division_.slices.end() ||
        tensor.sizes() != at::IntArrayRef(slice->second.part_sizes(group.size(), group.rank()))) {
      whole[name] = tensor;
      continue;
    }
    const at::Tensor own = tensor.contiguous();
    if (group.rank() != 0) {
      group.send(own.data_ptr(), own.nbytes(), 0, kTensorStateTag);
      continue;
    }
    std::vector<at::Tensor> all = {own};
    for (int r = 1; r < group.size(); ++r) {
      all.push_back(at::empty(slice->second.part_sizes(group.size(), r), own.options()));
      group.recv(all.back().data_ptr(), all.back().nbytes(), r, kTensorStateTag);
    }
    whole[name] = slice->second.join(all);
  }
  return whole;
}

StrategyState TensorParallel::state() {
  at::NoGradGuard no_grad;
  StrategyState part = exchange_.strategy->state();
  StrategyState whole;
  whole.step = part.step;
  whole.parameters = whole_of(part.parameters);
  whole.optimizer = whole_of(part.optimizer);
  whole.buffers = std::move(part.buffers);
  return whole;
}

void TensorParallel::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  StrategyState part;
  part.step = state.step;
  part.parameters = cut_state(state.parameters, division_.slices, group_.size(), group_.rank());
  part.optimizer = cut_state(state.optimizer, division_.slices, group_.size(), group_.rank());
  part.buffers = state.buffers;
  exchange_.strategy->load_state(part);
}

std::map<std::string, double> TensorParallel::fingerprint() {
  std::map<std::string, double> print;
  if (exchange_.fingerprint) print = exchange_.fingerprint();
  double all = 0, in_layers = 0;
  std::set<std::string> layers;  // of this rank: a stage of a pipeline has some
  for (const auto& [name, traffic] : traffic_) {
    all += traffic.elements;
    const size_t at = name.find(kTransformerLayers);
    if (at != 0) continue;
    in_layers += traffic.elements;
    layers.insert(name.substr(0, name.find('.', std::string(kTransformerLayers).size())));
  }
  const double t = group_.size();
  print["tensor_ranks"] = t;
  print["tensor_elements"] = all;
  print["whole_parameters"] = static_cast<double>(whole_parameters_);
  print["held_parameters"] = static_cast<double>(parameter_count(evaluated()));
  if (!layers.empty()) {
    print["layer_elements"] = in_layers / static_cast<double>(layers.size());
    print["layer_formula"] =
        8 * static_cast<double>(tokens_) * static_cast<double>(division_.width) * (t - 1) / t;
  }
  return print;
}

}  // namespace starling
