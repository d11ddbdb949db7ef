#include "starling/commands/compress.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "starling/base/atomic_file.h"
#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/comm/group.h"
#include "starling/commands/retraining.h"
#include "starling/commands/shared_weights.h"
#include "starling/data/source_factory.h"
#include "starling/net/security/data_security.h"
#include "starling/nn/state.h"
#include "starling/run/model_factories.h"
#include "starling/run/training.h"
#include "starling/train/evaluate.h"

namespace starling {
namespace {

constexpr double kPruningShare = 0.5;  // of the steps of the first stage: the density falls
constexpr int kPruningRounds = 40;     // how often weights are pruned meanwhile
constexpr int64_t kEvaluationBatch = 64;

// One compression: the model, its layers and its data.
class Compression {
 public:
  Compression(const RunSpec& spec, const CompressOptions& options, Group& group,
              const CompressProgress& progress)
      : spec_(spec),
        options_(options),
        progress_(progress),
        data_(open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security))),
        group_(group) {
    if (!data_.test) {
      throw ConfigError("data.source",
                        spec.data.source + " has no test part; name one by --set data.test_source=…");
    }
    if (data_.train->size() < options.batch) {
      throw ConfigError("--retrain-batch",
                        fmt::format("{} holds {} samples, fewer than a batch of {}; give a "
                                    "smaller batch",
                                    spec.data.source, data_.train->size(), options.batch));
    }
    replica_ =
        make_replica(zoo_factory(spec, data_.train->info())(ModelHooks{}), at::kFloat, spec.train.seed);
    layers_ = shared_weights_of(replica_, spec.model.name);
    choose_densities();
  }

  CompressReport run() {
    CompressReport report;
    report.file = options_.file;
    report.parameters = static_cast<uint64_t>(parameter_count(replica_));
    report.before = evaluated();
    if (!prune()) return interrupted(report);
    report.pruned = evaluated();
    if (!cluster()) return interrupted(report);
    write(report);
    report.after = evaluated();
    return report;
  }

 private:
  static CompressReport interrupted(CompressReport report) {
    report.interrupted = true;
    return report;
  }

  void choose_densities() {
    std::vector<LayerSize> sizes;
    for (const SharedWeights& layer : layers_) sizes.push_back({layer.layer(), layer.weights()});
    const LayerDensities given = parse_densities(options_.layer_densities, sizes, "--layer-density");
    densities_ = layer_densities(sizes, options_.density, given);
  }

  EvalDone evaluated() {
    GroupGather gather(group_);
    const int64_t batch = spec_.train.eval_batch > 0 ? spec_.train.eval_batch : kEvaluationBatch;
    return evaluate(replica_, *data_.test, batch, zoo_options(data_.test->info()).metrics(), gather, 0);
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
    if (rounds < kPruningRounds) prune_to(1);
    return whole;
  }

  // As prune().
  bool cluster() {
    Retraining sharing = retraining(options_.cluster_epochs, 2);
    sharing.lr *= options_.cluster_lr_share;
    add_others(sharing);
    for (SharedWeights& layer : layers_) {
      layer.cluster(static_cast<int>(layer.convolution() ? options_.conv_bits : options_.linear_bits));
      sharing.tensors.push_back({layer.centroids(), [&layer] { return layer.centroid_gradient(); }});
    }
    sharing.before_step = [&](double done) { return !progress_ || progress_(2, done); };
    sharing.after_update = [&] {
      for (SharedWeights& layer : layers_) layer.apply_centroids();
    };
    return retrain(replica_, data_.train, sharing);
  }

  // Returns the tensors of the file: the layers first, in their order.
  std::vector<CompressedTensor> tensors() const {
    std::vector<CompressedTensor> tensors;
    std::set<std::string> done;
    for (const SharedWeights& layer : layers_) {
      tensors.push_back(layer.compressed(!options_.fp32_values));
      done.insert(layer.parameter());
    }
    std::set<std::string> buffers;
    for (const NamedTensor& buffer : replica_.buffers) buffers.insert(buffer.name);
    for (const auto& [name, value] : state_of(*replica_.model.module)) {
      if (!done.contains(name))
        tensors.push_back(dense_tensor(name, value, !options_.fp32_values && !buffers.contains(name)));
    }
    return tensors;
  }

  // Writes the file, and reads it into the model again.
  void write(CompressReport& report) {
    std::vector<CompressedSize> sizes;
    const std::vector<std::byte> bytes = write_compressed(tensors(), &sizes);
    AtomicFile file(options_.file);
    file.write(bytes.data(), bytes.size());
    file.commit();
    const TensorFile read = read_weights(options_.file);
    for (const SharedWeights& layer : layers_) {
      const at::Tensor expected =
          options_.fp32_values ? layer.weight().detach() : layer.weight().detach().to(at::kHalf);
      STARLING_CHECK(at::equal(read.tensors.at(layer.parameter()), expected),
                     "{} does not hold the weights of {}", options_.file, layer.layer());
    }
    load_into(*replica_.model.module, read, /*strict=*/true, options_.file);
    report.file_bytes = report.other_bytes = bytes.size();
    for (size_t i = 0; i < layers_.size(); ++i) {
      const SharedWeights& layer = layers_[i];
      report.other_bytes -= sizes[i].bytes;
      report.layers.push_back({layer.layer(), layer.weights(), layer.kept(), sizes[i].padding,
                               layer.centroids().numel(), sizes[i].distance_bits, sizes[i].cluster_bits,
                               sizes[i].bytes});
    }
  }

  const RunSpec& spec_;
  const CompressOptions& options_;
  const CompressProgress& progress_;
  DataSets data_;
  Group& group_;
  Replica replica_;
  std::vector<SharedWeights> layers_;
  LayerDensities densities_;
};

}  // namespace

CompressReport compress(const RunSpec& spec, const CompressOptions& options, Group& group,
                        const CompressProgress& progress) {
  if (group.size() > 1) throw ConfigError("train.ranks", kOneProcess);
  if (!options.force && std::filesystem::exists(options.file))
    throw ConfigError(options.file, "exists; give another name by --out, or --force");
  return Compression(spec, options, group, progress).run();
}

}  // namespace starling
