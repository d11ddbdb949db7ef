#include "starling/run/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/nn/blocks.h"
#include "starling/parallel/replica.h"
#include "starling/plan/balance.h"
#include "starling/run/broadcast_text.h"
#include "starling/run/gemm_measurement.h"
#include "starling/run/strategies.h"
#include "starling/spec/mesh.h"

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

// Where each stage begins, by the blocks' measured times. Empty where the model cannot be cut so: every rank finds that and
// says why when it makes the pipeline.
std::string choose_cut(const RunSpec& spec, const ModelFactory& factory, const Batch& sample, int stages,
                       const Clock& clock) {
  const Replica replica = make_replica(factory, working_type(spec.train.precision), spec.train.seed);
  if (replica.model.blocks.size() < static_cast<size_t>(stages)) return {};
  const at::Tensor input =
      sample.input.is_floating_point() ? sample.input.to(working_type(spec.train.precision)) : sample.input;
  if (replica.model.samples) replica.model.samples->keys = sample.keys;
  const std::vector<double> seconds = measure_blocks(replica.model, input, sample.target, clock);
  return fmt::format("{}", fmt::join(balance_stages(seconds, stages), " "));
}

// Of a pipeline with so many stages.
bool is_cut(const std::string& text, int stages) {
  return std::count(text.begin(), text.end(), ' ') == stages;
}

}  // namespace

int64_t measured_samples(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (!is_pipeline(spec)) return std::max<int64_t>(1, spec.train.global_batch / mesh.replica);
  return std::max<int64_t>(1, spec.train.global_batch / mesh.replica / pipeline_schedule(spec).micro_batches);
}

Choices make_choices(const RunSpec& spec, const ModelFactory& factory, const Batch& sample,
                     const Choices& earlier, Group& group, const Clock& clock) {
  const int stages = is_pipeline(spec) ? pipeline_schedule(spec).stages() : 0;  // its errors are every rank's
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
    if (stages > 0 && !is_cut(choices["cut"], stages))
      choices["cut"] = choose_cut(spec, factory, sample, stages, clock);
    if (choices["cut"].empty()) choices.erase("cut");
    text = nlohmann::json(choices).dump();
  }
  return nlohmann::json::parse(broadcast_text(group, text)).get<Choices>();
}

void apply_choices(const Choices& choices) {
  const auto gemm = choices.find("gemm");
  if (gemm != choices.end()) select_gemm(gemm->second);
}

}  // namespace starling
