#include "starling/run/choice/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <numeric>

#include "starling/nn/blocks.h"
#include "starling/parallel/replica/default_generator.h"
#include "starling/parallel/replica/replica.h"
#include "starling/plan/balance.h"
#include "starling/run/choice/gemm_measurement.h"
#include "starling/run/choice/share_measurement.h"
#include "starling/run/ranks/broadcast_text.h"
#include "starling/run/strategies.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/mesh.h"
#include "starling/spec/read_keys.h"

namespace starling {
namespace {

bool has_convolutions(const Replica& replica) {
  return std::any_of(replica.parameters.begin(), replica.parameters.end(),
                     [](const NamedTensor& p) { return p.tensor.dim() == 4; });
}

// Returns the seconds of a forward and backward pass over the sample, the least of `repeats` passes.
double pass_seconds(const ModelFactory& factory, const Batch& sample, at::ScalarType type, bool channels_last,
                    int repeats = 3) {
  Replica replica = make_replica(factory, type, 0);
  if (channels_last) to_channels_last(replica);
  return best_seconds([&] { batch_loss(replica.model, sample, type, channels_last).mean().backward(); },
                      repeats);
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
  // Some models cannot compute in channels-last order: Tensor::view() needs contiguous memory. A model that
  // fails in both orders fails in the first step, which reports the error.
  try {
    const double last = pass_seconds(factory, part, type, true, spec.train.tune ? 3 : 0);
    return !spec.train.tune || last < pass_seconds(factory, part, type, false) ? "channels-last"
                                                                               : "contiguous";
  } catch (const std::exception&) {
    return "contiguous";
  }
}

std::string choose_gemm(const RunSpec& spec, const Batch& sample) {
  if (spec.train.gemm != "auto") return spec.train.gemm;
  if (!spec.train.tune || spec.train.precision != Precision::kFp32) return "mkl";
  return measure_gemm(std::clamp<int64_t>(sample.size(), 32, 256)).faster();
}

// Returns true if the values of a step depend on where the stages begin.
bool cut_shapes_training(const RunSpec& spec) {
  return spec.exchange.codec != "none" || spec.exchange.pull_codec != "none" ||
         spec.pipeline.activations != "none";
}

// Returns where each stage begins. The blocks' measured times decide, or an estimate of their work if a
// measurement would change what the run learns. The text is empty if the model cannot be cut. Every rank
// finds that out, and reports the reason, when it makes the pipeline.
std::string choose_cut(const RunSpec& spec, const ModelFactory& factory, const Batch& sample, int stages,
                       const Clock& clock) {
  const Replica replica = make_replica(factory, working_type(spec.train.precision), spec.train.seed);
  if (replica.model.blocks.size() < static_cast<size_t>(stages)) return {};
  const Tensors inputs =
      inputs_of(replica.model, sample, working_type(spec.train.precision), /*channels_last=*/false);
  if (replica.model.samples) replica.model.samples->keys = sample.keys;
  // A block that fails here fails in the first step, which reports the error.
  std::vector<double> costs;
  try {
    const at::Tensor generator = default_generator_state();
    costs = estimate_blocks(replica.model, inputs);
    // The cut decides which numbers of the generator a block draws.
    const bool draws = !at::equal(generator, default_generator_state());
    if (spec.train.tune || !(cut_shapes_training(spec) || draws))
      costs = measure_blocks(replica.model, inputs, sample.targets(), clock);
  } catch (const std::exception&) {
    costs.assign(replica.model.blocks.size(), 1.0);
  }
  return fmt::format("{}", fmt::join(balance_stages(costs, stages), " "));
}

// Returns true if `text` is the cut of a pipeline with this many stages.
bool is_cut(const std::string& text, int stages) {
  return std::count(text.begin(), text.end(), ' ') == stages;
}

}  // namespace

int64_t measured_samples(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (!has_stages(spec))
    return std::max<int64_t>(1, spec.train.global_batch / mesh.replica / spec.train.accumulate);
  return std::max<int64_t>(1, spec.train.global_batch / mesh.replica / pipeline_schedule(spec).micro_batches);
}

Batch first_samples(const Source& source, int64_t count) {
  std::vector<int64_t> indices(std::min(count, source.size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  Batch batch = source.read(indices, 0);
  batch.keys = at::arange(batch.size(), at::kLong);  // a model with dropout draws from the keys
  return batch;
}

Choices make_choices(const RunSpec& spec, const ModelFactory& factory, const Batch& sample,
                     const Choices& earlier, Group& group, const Clock& clock) {
  // Every rank reads the schedule, so that every rank throws the errors of a wrong one.
  const int stages = has_stages(spec) ? pipeline_schedule(spec).stages() : 0;
  std::string text;
  if (group.rank() == 0) {
    Choices choices = earlier;
    if (choices.count("gemm") == 0) {
      choices["gemm"] = choose_gemm(spec, sample);
      apply_choices(choices);
    }
    if (choices.count("layout") == 0) {
      choices["layout"] =
          spec.train.layout != "auto" ? spec.train.layout : choose_layout(spec, factory, sample);
    }
    if (stages > 0 && !is_cut(choices["cut"], stages))
      choices["cut"] = choose_cut(spec, factory, sample, stages, clock);
    if (choices["cut"].empty()) choices.erase("cut");
    if (known_parts(spec, choices).empty() || !parse_batch_share(spec.data.share).measured)
      choices.erase("share");
    text = nlohmann::json(choices).dump();
  }
  return nlohmann::json::parse(broadcast_text(group, text)).get<Choices>();
}

void apply_choices(const Choices& choices) {
  const auto gemm = choices.find("gemm");
  if (gemm != choices.end()) select_gemm(gemm->second);
}

}  // namespace starling
