// What the tests of pipelines and meshes train, a reference in one process, and how a rank's process reports
// what is wrong.
#pragma once

#include <fmt/format.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>

#include "starling/base/error.h"
#include "starling/parallel/one_process_test_training.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {

inline constexpr int kSteps = 5;
inline constexpr int64_t kBatch = 16;

// Throws if `condition` is false. The message of a rank's process reaches the test in this way.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorCode::kInternal, message);
}

// A model with its batches.
struct Task {
  ModelFactory factory;
  std::function<Batch(int64_t step)> batch;
};

// A multilayer perceptron with eight blocks.
inline Task mlp_task() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {12, 17, 13, 11, 9, 8, 7, 6, 5};  // eight blocks
  return {zoo_model(spec, {{3, 2, 2}, 5, false}), [](int64_t step) {
            torch::manual_seed(100 + step);
            return Batch{torch::randn({kBatch, 3, 2, 2}), torch::randint(5, {kBatch}, torch::kLong)};
          }};
}

// A task of predicting random tokens.
inline Task text_task(const ModelSpec& spec) {
  return {zoo_model(spec, {{6}, 11, true}), [](int64_t step) {
            torch::manual_seed(100 + step);
            const at::Tensor text = torch::randint(11, {kBatch, 7}, torch::kLong);
            return Batch{text.narrow(1, 0, 6).contiguous(), text.narrow(1, 1, 6).contiguous()};
          }};
}

// A small transformer with tied embeddings.
inline Task gpt_task() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 6;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 6;
  return text_task(spec);
}

// A small transformer with grouped queries. It has an output layer of its own unless `tied` is true.
inline Task llama_task(bool tied) {
  ModelSpec spec;
  spec.name = "llama";
  spec.layers = 6;
  spec.width = 16;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.tokens = 6;
  spec.tied = tied;
  return text_task(spec);
}

// Returns the settings of an optimizer.
inline OptimizerSpec optimizer(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  spec.momentum = 0.9;
  spec.weight_decay = 0.01;
  return spec;
}

// Trains in one process, naively.
inline std::map<std::string, at::Tensor> one_process(const Task& task, const OptimizerSpec& spec, int steps,
                                                     double clip = 0,
                                                     const Backward& backward = whole_batch) {
  return train_one_process(task.factory, task.batch, spec, steps, {.clip = clip, .seed = 3}, backward);
}

// Returns the options of a pipeline with a built-in schedule.
inline PipelineOptions options_for(const std::string& schedule, int ranks, int chunks, int micro_batches) {
  PipelineOptions options;
  options.schedule = make_schedule(schedule, ranks, chunks, micro_batches);
  options.master = options.working = at::kDouble;
  options.seed = 3;
  return options;
}

// Compares the changes of the parameters since the start, by the norm of each tensor.
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

// A form of a pipeline that a test runs.
struct Form {
  std::string schedule;
  int chunks = 1;
  int micro_batches = 4;
};

}  // namespace starling
