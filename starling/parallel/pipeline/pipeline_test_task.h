// What the tests of pipelines and meshes train, one process to compare with, and how a rank's process says what is wrong.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/optim/update_rule_reference.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/testing/forked_ranks.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {

inline constexpr int kSteps = 5;
inline constexpr int64_t kBatch = 16;

inline std::unique_ptr<Group> join(Store& store, int rank, int size) {
  GroupSetup setup;
  setup.rank = rank;
  setup.size = size;
  setup.options.timeout = std::chrono::seconds(60);
  return make_group(store, setup);
}

// Throws where a rank's process finds something wrong: its message reaches the test.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorCode::kInternal, message);
}

inline void expect_all_end(ForkedRanks& ranks, int size) {
  for (int r = 0; r < size; ++r) {
    const int status = ranks.wait(r);
    EXPECT_EQ(status, 0) << "rank " << r << ": "
                         << (status == 1
                                 ? ranks.store().get("error/" + std::to_string(r), std::chrono::seconds(1))
                                 : "");
  }
}

struct Task {
  ModelFactory factory;
  std::function<Batch(int64_t step)> batch;
};

inline Task mlp_task() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {12, 17, 13, 11, 9, 8, 7, 6, 5};  // eight blocks
  return {zoo_model(spec, {{3, 2, 2}, 5, false}), [](int64_t step) {
            torch::manual_seed(100 + step);
            return Batch{torch::randn({kBatch, 3, 2, 2}), torch::randint(5, {kBatch}, torch::kLong)};
          }};
}

inline Task gpt_task() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 6;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 6;
  return {zoo_model(spec, {{6}, 11, true}), [](int64_t step) {
            torch::manual_seed(100 + step);
            const at::Tensor text = torch::randint(11, {kBatch, 7}, torch::kLong);
            return Batch{text.narrow(1, 0, 6).contiguous(), text.narrow(1, 1, 6).contiguous()};
          }};
}

inline OptimizerSpec optimizer(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  spec.momentum = 0.9;
  spec.weight_decay = 0.01;
  return spec;
}

// Leaves the gradient of the batch's mean loss in the parameters.
using Backward = std::function<void(const Model&, const at::Tensor& input, const at::Tensor& target)>;

inline void whole_batch(const Model& model, const at::Tensor& input, const at::Tensor& target) {
  model.loss(model.forward(input), target).backward();
}

// One process, naively: the gradient, then the formulas element by element.
inline std::map<std::string, at::Tensor> one_process(const Task& task, const OptimizerSpec& spec, int steps,
                                                     double clip = 0,
                                                     const Backward& backward = whole_batch) {
  Replica replica = make_replica(task.factory, at::kDouble, 3);
  const UpdateRule rule = make_update_rule(spec);
  std::map<std::string, std::vector<at::Tensor>> states;
  for (int64_t step = 1; step <= steps; ++step) {
    const Batch batch = task.batch(step);
    const at::Tensor input = batch.input.is_floating_point() ? batch.input.to(at::kDouble) : batch.input;
    for (NamedTensor& p : replica.parameters) p.tensor.mutable_grad().reset();
    backward(replica.model, input, batch.target);
    double squares = 0;
    for (NamedTensor& p : replica.parameters) squares += p.tensor.grad().square().sum().item<double>();
    const double norm = std::sqrt(squares);
    for (NamedTensor& p : replica.parameters) {
      auto& own = states[p.name];
      while (static_cast<int>(own.size()) < rule.state_count())
        own.push_back(at::zeros_like(p.tensor.detach()));
      const at::Tensor gradient = p.tensor.grad().contiguous();
      const double* gradients[] = {gradient.data_ptr<double>()};
      std::vector<double*> pointers;
      for (const at::Tensor& s : own) pointers.push_back(s.data_ptr<double>());
      UpdateArgs<double, double> args;
      args.gradients = gradients;
      args.gradient_scale = clip > 0 && norm > clip ? clip / (norm + 1e-6) : 1;
      args.parameter = args.parameter_out = p.tensor.data_ptr<double>();
      args.state = args.state_out = pointers.data();
      args.count = static_cast<size_t>(p.tensor.numel());
      reference_update(args, spec, 0.05, step);
    }
  }
  std::map<std::string, at::Tensor> result;
  for (const NamedTensor& p : replica.parameters) result[p.name] = p.tensor.detach().clone();
  return result;
}

inline PipelineOptions options_for(const std::string& schedule, int ranks, int chunks, int micro_batches) {
  PipelineOptions options;
  options.schedule = make_schedule(schedule, ranks, chunks, micro_batches);
  options.master = options.working = at::kDouble;
  options.seed = 3;
  return options;
}

// Compares what has been added to the initial values, by tensor norm.
inline void require_equal(const Task& task, const StrategyState& state,
                          const std::map<std::string, at::Tensor>& expected, double bound,
                          const std::string& what) {
  std::map<std::string, at::Tensor> actual_change, expected_change;
  for (const NamedTensor& p : make_replica(task.factory, at::kDouble, 3).parameters) {
    actual_change[p.name] = state.parameters.at(p.name) - p.tensor.detach();
    expected_change[p.name] = expected.at(p.name) - p.tensor.detach();
  }
  const NamedDifference worst = largest_difference(actual_change, expected_change);
  require(worst.difference <= bound, fmt::format("{}: {} differs by {}", what, worst.name, worst.difference));
}

struct Form {
  std::string schedule;
  int chunks = 1;
  int micro_batches = 4;
};

}  // namespace starling
