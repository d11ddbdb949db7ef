#include "starling/train/evaluate.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "starling/base/error.h"

namespace starling {
namespace {

// The sums of a rank before those of the metrics: the loss, its weight, and the number of samples.
constexpr size_t kLossSums = 3;

// Evaluates rank `rank`'s part of the samples. Returns the sums, and for each metric the sum and the weight.
std::vector<double> sums_of(Replica& replica, const Source& source, int64_t batch,
                            const std::vector<Metric>& metrics, int rank, int ranks, const GoesOn& goes_on) {
  const at::ScalarType type = replica.parameters.front().tensor.scalar_type();
  const int64_t begin = source.size() * rank / ranks;
  const int64_t end = source.size() * (rank + 1) / ranks;
  std::vector<double> sums(kLossSums + 2 * metrics.size());
  for (int64_t at = begin; at < end; at += batch) {
    std::vector<int64_t> indices(std::min(batch, end - at));
    std::iota(indices.begin(), indices.end(), at);
    const Batch samples = source.read(indices, /*epoch=*/0);
    const Model& model = replica.model;
    const Tensors outputs = model.forward(inputs_of(model, samples, type, /*channels_last=*/false));
    Tensors targets = samples.targets();
    // The metrics compute where the model does.
    const auto computed =
        std::find_if(outputs.begin(), outputs.end(), [](const at::Tensor& t) { return t.defined(); });
    for (at::Tensor& target : targets) {
      if (computed != outputs.end() && target.defined()) target = target.to(computed->device());
    }
    const auto n = static_cast<double>(indices.size());
    const WeightedLoss loss = model.loss.of(outputs, targets);
    const bool weighted = model.loss.weighted();
    sums[0] += loss.sum.item<double>() * (weighted ? 1 : n);
    sums[1] += weighted ? loss.weight : n;
    sums[2] += n;
    for (size_t m = 0; m < metrics.size(); ++m) {
      try {
        const Mean mean = metrics[m].of(outputs, targets);
        sums[kLossSums + 2 * m] += mean.sum;
        sums[kLossSums + 1 + 2 * m] += mean.weight;
      } catch (c10::Error& error) {
        error.add_context(fmt::format("in the metric \"{}\"", metrics[m].name));
        throw;
      }
    }
    if (goes_on && !goes_on(std::min(at + batch, end) - begin, end - begin)) {
      sums[2] = std::numeric_limits<double>::quiet_NaN();  // the evaluation is broken off
      break;
    }
  }
  return sums;
}

}  // namespace

void put_metric(EvalDone& done, const std::string& name, double value) {
  if (name == "accuracy" && value >= 0 && value <= 1) {
    done.accuracy = value;
  } else {
    done.metrics[name] = value;
  }
}

double metric_of(const EvalDone& done, const std::string& name) {
  if (const auto it = done.metrics.find(name); it != done.metrics.end()) return it->second;
  return name == "accuracy" && done.accuracy >= 0 ? done.accuracy : std::numeric_limits<double>::quiet_NaN();
}

EvalDone evaluate(Replica& replica, const Source& source, int64_t batch, const std::vector<Metric>& metrics,
                  RankGather& rank_gather, int64_t step, const GoesOn& goes_on) {
  torch::NoGradGuard no_grad;
  replica.model.module->eval();
  const auto part_of = [&](int rank) {
    try {
      return sums_of(replica, source, batch, metrics, rank, rank_gather.ranks(), goes_on);
    } catch (c10::Error& error) {
      error.add_context(fmt::format("in the evaluation after step {}", step));
      throw;
    }
  };
  auto all = rank_gather.gather(fmt::format("evaluation {}", step), part_of(rank_gather.rank()));
  std::vector<double> sums(kLossSums + 2 * metrics.size());
  for (int r = 0; r < rank_gather.ranks(); ++r) {
    std::vector<double>& part = all[static_cast<size_t>(r)];
    if (part.empty() && rank_gather.leads()) part = part_of(r);
    if (!part.empty() && part.size() != sums.size()) {
      throw ConfigError("Run::fit",
                        fmt::format("rank {} measures other metrics than rank {}: give every rank the same "
                                    "FitOptions",
                                    r, rank_gather.rank()));
    }
    for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
  }
  replica.model.module->train();
  EvalDone done;
  done.step = step;
  if (std::isnan(sums[2])) {
    done.samples = -1;
    return done;
  }
  done.samples = static_cast<int64_t>(sums[2]);
  done.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
  done.loss_weight = sums[1];
  for (size_t m = 0; m < metrics.size() && done.samples > 0; ++m) {
    const Mean mean{sums[kLossSums + 2 * m], sums[kLossSums + 1 + 2 * m]};
    put_metric(done, metrics[m].name, mean.value());
    done.metric_weights.push_back(mean.weight);
  }
  return done;
}

}  // namespace starling
