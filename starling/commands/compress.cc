#include "starling/commands/compress.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>

#include "starling/base/atomic_file.h"
#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/comm/group.h"
#include "starling/commands/retraining.h"
#include "starling/commands/shared_weights.h"
#include "starling/commands/tested_data.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/nn/state.h"
#include "starling/run/folder/run_weights.h"
#include "starling/run/model_factories.h"
#include "starling/run/training.h"
#include "starling/train/evaluate.h"

namespace starling {
namespace {

constexpr double kPruningShare = 0.5;  // of the steps of the first stage: the density falls
constexpr int kPruningRounds = 40;     // how often weights are pruned meanwhile

// One compression: the model, its layers and its data.
class Compression {
 public:
  Compression(const RunSpec& spec, const CompressOptions& options, Group& group,
              const CompressProgress& progress)
      : spec_(spec),
        options_(options),
        progress_(progress),
        file_(options.file),
        data_(open_tested_data(spec)),
        group_(group) {
    if (data_.train->size() < options.batch) {
      throw ConfigError("--retrain-batch",
                        fmt::format("{} holds {} samples, fewer than a batch of {}; give a "
                                    "smaller batch",
                                    spec.data.source, data_.train->size(), options.batch));
    }
    replica_ =
        make_replica(zoo_factory(spec, data_.train->info())(ModelHooks{}), at::kFloat, spec.train.seed);
    if (const std::string name = not_finite(); !name.empty())
      throw DataError(fmt::format("{}: {} has values that are not finite; compress an earlier checkpoint",
                                  spec.model.init, name));
    layers_ = shared_weights_of(replica_, spec.model.name);
    require_halves();
    choose_densities();
  }

  CompressReport run() {
    CompressReport report;
    report.file = options_.file;
    report.parameters = static_cast<uint64_t>(parameter_count(replica_));
    report.interrupted = !(evaluate_into(report.before) && prune() && evaluate_into(report.pruned) &&
                           cluster() && write(report));
    return report;
  }

 private:
  bool goes_on() const { return !progress_ || progress_(0, 0); }

  // Returns the name of a parameter or buffer with a value that is not finite, or "".
  std::string not_finite() const {
    for (const auto& [name, value] : state_of(*replica_.model.module))
      if (value.is_floating_point() && !at::isfinite(value).all().item<bool>()) return name;
    return "";
  }

  // Throws if training has made a weight infinite or NaN.
  void require_finite() const {
    if (const std::string name = not_finite(); !name.empty())
      throw Error(
          ErrorCode::kNumeric,
          fmt::format("training has made values of {} that are not finite; give a lower --retrain-lr than "
                      "{:g}",
                      name, options_.lr));
  }

  // Throws if fp16 cannot hold a tensor that is stored whole.
  void require_halves() const { other_tensors(); }

  void choose_densities() {
    std::vector<LayerSize> sizes;
    for (const SharedWeights& layer : layers_) sizes.push_back({layer.layer(), layer.weights()});
    const LayerDensities given = parse_densities(options_.layer_densities, sizes, "--layer-density");
    densities_ = layer_densities(sizes, options_.density, given);
  }

  // Returns false if `progress` ended the evaluation.
  bool evaluate_into(EvalDone& done) {
    GroupGather gather(group_);
    done = evaluate(replica_, *data_.test, evaluation_batch(spec_), zoo_options(data_.test->info()).metrics(),
                    gather, 0, [this](int64_t, int64_t) { return goes_on(); });
    return done.samples >= 0;
  }

  // Prunes to the densities after the share `done` of the pruning.
  void prune_to(double done) {
    for (SharedWeights& layer : layers_) {
      const double last = densities_.at(layer.layer());
      layer.prune(last + (1 - last) * std::pow(1 - done, 3));
    }
  }

  Retraining retraining(double epochs, uint64_t number) const {
    Retraining retraining;
    retraining.epochs = epochs;
    retraining.lr = options_.lr;
    retraining.batch = options_.batch;
    retraining.seed = spec_.train.seed + number;
    return retraining;
  }

  // Adds the parameters that no layer of layers_ has: biases and the parameters of norms.
  void add_others(Retraining& retraining) const {
    std::set<std::string> shared;
    for (const SharedWeights& layer : layers_) shared.insert(layer.parameter());
    for (const NamedTensor& parameter : replica_.parameters) {
      if (shared.contains(parameter.name)) continue;
      retraining.tensors.push_back({parameter.tensor, [tensor = parameter.tensor] { return tensor.grad(); }});
    }
  }

  // Returns false if `progress` ended the training.
  bool prune() {
    Retraining pruning = retraining(options_.prune_epochs, 1);
    add_others(pruning);
    for (const SharedWeights& layer : layers_)
      pruning.tensors.push_back({layer.weight(), [&layer] { return layer.masked_gradient(); }});
    int rounds = 0;
    pruning.before_step = [&](double done) {
      const int due = static_cast<int>(std::min(1.0, done / kPruningShare) * kPruningRounds);
      if (due > rounds) prune_to(static_cast<double>(rounds = due) / kPruningRounds);
      return !progress_ || progress_(1, done);
    };
    pruning.after_update = [&] {
      for (SharedWeights& layer : layers_) layer.apply_mask();
    };
    const bool whole = retrain(replica_, data_.train, pruning);
    require_finite();
    if (rounds < kPruningRounds) prune_to(1);
    return whole;
  }

  // As prune().
  bool cluster() {
    Retraining sharing = retraining(options_.cluster_epochs, 2);
    sharing.lr *= options_.cluster_lr_share;
    add_others(sharing);
    for (SharedWeights& layer : layers_) {
      if (!goes_on()) return false;
      layer.cluster(static_cast<int>(layer.convolution() ? options_.conv_bits : options_.linear_bits));
      if (!options_.fp32_values) require_half(layer.parameter(), layer.centroids());
      sharing.tensors.push_back({layer.centroids(), [&layer] { return layer.centroid_gradient(); }});
    }
    sharing.before_step = [&](double done) { return !progress_ || progress_(2, done); };
    sharing.after_update = [&] {
      for (SharedWeights& layer : layers_) layer.apply_centroids();
    };
    const bool whole = retrain(replica_, data_.train, sharing);
    require_finite();
    return whole && goes_on();
  }

  // Returns the tensors that are stored whole: those of no layer.
  std::vector<CompressedTensor> other_tensors() const {
    std::set<std::string> layers, buffers;
    for (const SharedWeights& layer : layers_) layers.insert(layer.parameter());
    for (const NamedTensor& buffer : replica_.buffers) buffers.insert(buffer.name);
    std::vector<CompressedTensor> tensors;
    for (const auto& [name, value] : state_of(*replica_.model.module)) {
      if (!layers.contains(name))
        tensors.push_back(dense_tensor(name, value, !options_.fp32_values && !buffers.contains(name)));
    }
    return tensors;
  }

  // Returns the tensors of the file: the layers first, in their order.
  std::vector<CompressedTensor> tensors() const {
    std::vector<CompressedTensor> tensors;
    for (const SharedWeights& layer : layers_) tensors.push_back(layer.compressed(!options_.fp32_values));
    std::vector<CompressedTensor> others = other_tensors();
    std::move(others.begin(), others.end(), std::back_inserter(tensors));
    return tensors;
  }

  // Makes the bytes of the file, reads them into the model again, evaluates and writes the file. Returns
  // false if `progress` ended the evaluation; no file is written then.
  bool write(CompressReport& report) {
    std::vector<CompressedSize> sizes;
    const std::vector<std::byte> bytes = write_compressed(tensors(), &sizes);
    const TensorFile read = read_compressed(options_.file, bytes);
    for (const SharedWeights& layer : layers_) {
      const at::Tensor expected =
          options_.fp32_values ? layer.weight().detach() : layer.weight().detach().to(at::kHalf);
      STARLING_CHECK(at::equal(read.tensors.at(layer.parameter()), expected),
                     "{} would not hold the weights of {}", options_.file, layer.layer());
    }
    load_into(*replica_.model.module, read, /*strict=*/true, options_.file);
    if (!evaluate_into(report.after)) return false;
    file_.write(bytes.data(), bytes.size());
    file_.commit();
    report.file_bytes = report.other_bytes = bytes.size();
    for (size_t i = 0; i < layers_.size(); ++i) {
      const SharedWeights& layer = layers_[i];
      report.other_bytes -= sizes[i].bytes;
      report.layers.push_back({layer.layer(), layer.weights(), layer.kept(), sizes[i].padding,
                               layer.centroids().numel(), sizes[i].distance_bits, sizes[i].cluster_bits,
                               sizes[i].bytes});
    }
    return true;
  }

  const RunSpec& spec_;
  const CompressOptions& options_;
  const CompressProgress& progress_;
  AtomicFile file_;  // a wrong path ends the compression at its start
  DataSets data_;
  Group& group_;
  Replica replica_;
  std::vector<SharedWeights> layers_;
  LayerDensities densities_;
};

}  // namespace

void check_output(const RunSpec& spec, const CompressOptions& options) {
  const std::filesystem::path file = options.file;
  std::error_code none;
  if (std::filesystem::equivalent(file, spec.model.init, none))
    throw ConfigError(options.file, "is the file that is compressed; give another name by --out");
  if (file.filename() == kWeightsFile)
    throw ConfigError(options.file,
                      "is the name of weights that are not compressed; give another name by --out");
  if (!options.force && std::filesystem::exists(file))
    throw ConfigError(options.file, "exists; give another name by --out, or --force");
}

CompressReport compress(const RunSpec& spec, const CompressOptions& options, Group& group,
                        const CompressProgress& progress) {
  if (group.size() > 1) throw ConfigError("train.ranks", kOneProcess);
  check_output(spec, options);
  return Compression(spec, options, group, progress).run();
}

}  // namespace starling
