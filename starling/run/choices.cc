#include "starling/run/choices.h"

#include <ATen/Context.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/replica.h"

namespace starling {
namespace {

constexpr double kFp32Error = 2e-6;

double seconds_of(const std::function<void()>& work, int repeats) {
  const SystemClock clock;
  work();
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const Nanoseconds start = clock.now();
    work();
    best = std::min(best, to_seconds(clock.now() - start));
  }
  return best;
}

void select_gemm(const std::string& name) {
  at::globalContext().setFloat32MatmulPrecision(name == "onednn" ? "medium" : "highest");
}

GemmMeasurement measure_one(int64_t rows) {
  const int64_t shapes[][2] = {{1024, 1024}, {384, 1536}};
  GemmMeasurement result;
  double log_sum = 0;
  for (const auto& shape : shapes) {
    const at::Tensor a = torch::randn({rows, shape[0]}), b = torch::randn({shape[1], shape[0]});
    at::Tensor c = torch::empty({rows, shape[1]});
    const double s = seconds_of([&] { at::mm_out(c, a, b.t()); }, 5);
    const double flops = 2.0 * static_cast<double>(rows * shape[0] * shape[1]);
    log_sum += std::log(flops / s / 1e9) / std::size(shapes);
    const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble).t());
    const double error = ((c.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
    result.relative_error = std::max(result.relative_error, error);
  }
  result.gflops = std::exp(log_sum);
  return result;
}

bool has_convolutions(const Replica& replica) {
  return std::any_of(replica.parameters.begin(), replica.parameters.end(),
                     [](const NamedTensor& p) { return p.tensor.dim() == 4; });
}

// Seconds of a forward and backward pass over the sample.
double pass_seconds(const ModelFactory& factory, const Batch& sample, at::ScalarType type,
                    bool channels_last) {
  Replica replica = make_replica(factory, type, 0);
  if (channels_last) to_channels_last(replica);
  at::Tensor input = sample.input.is_floating_point() ? sample.input.to(type) : sample.input;
  if (channels_last) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  return seconds_of([&] { replica.model.loss(replica.model.forward(input), sample.target).backward(); }, 3);
}

at::ScalarType working_type(Precision precision) {
  return precision == Precision::kBf16   ? at::kBFloat16
         : precision == Precision::kFp64 ? at::kDouble
                                         : at::kFloat;
}

std::string choose_layout(const RunSpec& spec, const ModelFactory& factory, const Batch& sample) {
  const at::ScalarType type = working_type(spec.train.precision);
  if (sample.input.dim() != 4 || type == at::kDouble || !has_convolutions(make_replica(factory, type, 0)))
    return "contiguous";
  const Batch part{sample.input.narrow(0, 0, std::min<int64_t>(8, sample.size())),
                   sample.target.narrow(0, 0, std::min<int64_t>(8, sample.size()))};
  return pass_seconds(factory, part, type, true) < pass_seconds(factory, part, type, false) ? "channels-last"
                                                                                            : "contiguous";
}

}  // namespace

std::string GemmComparison::faster() const {
  return onednn.relative_error <= kFp32Error && onednn.gflops > mkl.gflops ? "onednn" : "mkl";
}

GemmComparison measure_gemm(int64_t rows) {
  at::NoGradGuard no_grad;
  const bool medium = at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::MEDIUM;
  GemmComparison result;
  select_gemm("mkl");
  result.mkl = measure_one(rows);
  select_gemm("onednn");
  result.onednn = measure_one(rows);
  select_gemm(medium ? "onednn" : "mkl");
  return result;
}

Choices make_choices(const RunSpec& spec, const ModelFactory& factory, const Batch& sample,
                     const Choices& earlier, Group& group) {
  std::string text;
  if (group.rank() == 0) {
    Choices choices = earlier;
    if (choices.count("gemm") == 0) {
      choices["gemm"] = spec.train.gemm != "auto" ? spec.train.gemm
                        : spec.train.precision == Precision::kFp32
                            ? measure_gemm(std::clamp<int64_t>(sample.size(), 32, 256)).faster()
                            : "mkl";
      apply_choices(choices);
    }
    if (choices.count("layout") == 0) {
      choices["layout"] =
          spec.train.layout != "auto" ? spec.train.layout : choose_layout(spec, factory, sample);
    }
    text = nlohmann::json(choices).dump();
  }
  if (group.size() > 1) {
    int64_t size = static_cast<int64_t>(text.size());
    group.broadcast(&size, 1, DataType::kInt64, 0);
    text.resize(size);
    group.broadcast(text.data(), text.size(), DataType::kUint8, 0);
  }
  return nlohmann::json::parse(text).get<Choices>();
}

void apply_choices(const Choices& choices) {
  const auto gemm = choices.find("gemm");
  if (gemm != choices.end()) select_gemm(gemm->second);
}

}  // namespace starling
