#include "starling/run/choices.h"

#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/parallel/replica.h"
#include "starling/run/broadcast_text.h"
#include "starling/run/gemm_measurement.h"

namespace starling {
namespace {

bool has_convolutions(const Replica& replica) {
  return std::any_of(replica.parameters.begin(), replica.parameters.end(),
                     [](const NamedTensor& p) { return p.tensor.dim() == 4; });
}

// Seconds of a forward and backward pass over the sample.
double pass_seconds(const ModelFactory& factory, const Batch& sample, at::ScalarType type,
                    bool channels_last) {
  Replica replica = make_replica(factory, type, 0);
  if (channels_last) to_channels_last(replica);
  return best_seconds([&] { batch_loss(replica.model, sample, type, channels_last).backward(); });
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
  const int64_t count = std::min<int64_t>(8, sample.size());
  const Batch part = sample.part(0, count);
  return pass_seconds(factory, part, type, true) < pass_seconds(factory, part, type, false) ? "channels-last"
                                                                                            : "contiguous";
}

}  // namespace

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
  return nlohmann::json::parse(broadcast_text(group, text)).get<Choices>();
}

void apply_choices(const Choices& choices) {
  const auto gemm = choices.find("gemm");
  if (gemm != choices.end()) select_gemm(gemm->second);
}

}  // namespace starling
