#include "starling/spec/recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "starling/base/error.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/enum_words.h"
#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

constexpr ModelRecipe kModels[] = {
    {"mlp",
     "optimizer.name=sgd optimizer.lr=0.05 optimizer.momentum=0.9 optimizer.weight_decay=1e-4 "
     "schedule.name=cosine schedule.warmup_share=0.02 train.global_batch=64"},
    {"lenet5",
     "optimizer.name=sgd optimizer.lr=0.02 optimizer.momentum=0.9 optimizer.weight_decay=1e-4 "
     "schedule.name=cosine schedule.warmup_share=0.02 train.global_batch=64"},
    {"resnet18",
     "optimizer.name=adamw optimizer.lr=1e-3 optimizer.weight_decay=0.05 schedule.name=poly "
     "schedule.power=1 schedule.warmup_share=0.2 train.global_batch=128"},
    {"gpt",
     "optimizer.name=adamw optimizer.lr=2e-3 optimizer.weight_decay=0.1 schedule.name=poly "
     "schedule.power=1 schedule.warmup_share=0.2 train.global_batch=8"},
    {"llama",
     "optimizer.name=adamw optimizer.lr=2e-3 optimizer.weight_decay=0.1 optimizer.clip_norm=1.0 "
     "schedule.name=poly schedule.power=1 schedule.warmup_share=0.2 train.global_batch=8"},
    // He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 3.4.
    {"resnet34",
     "optimizer.name=sgd optimizer.lr=0.1 optimizer.momentum=0.9 optimizer.weight_decay=1e-4 "
     "schedule.name=step schedule.milestones=[30.0,60.0] train.global_batch=256",
     true},
    {"resnet50",
     "optimizer.name=sgd optimizer.lr=0.1 optimizer.momentum=0.9 optimizer.weight_decay=1e-4 "
     "schedule.name=step schedule.milestones=[30.0,60.0] train.global_batch=256",
     true},
    // Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks", NIPS 2012,
    // section 5.
    {"alexnet",
     "optimizer.name=sgd optimizer.lr=0.01 optimizer.momentum=0.9 optimizer.weight_decay=5e-4 "
     "schedule.name=step schedule.milestones=[30.0,60.0,80.0] train.global_batch=128",
     true},
    // Lin et al., "Network in Network", ICLR 2014, follows the same procedure.
    {"nin",
     "optimizer.name=sgd optimizer.lr=0.01 optimizer.momentum=0.9 optimizer.weight_decay=5e-4 "
     "schedule.name=step schedule.milestones=[30.0,60.0,80.0] train.global_batch=128",
     true},
    // Iandola et al., "FireCaffe", CVPR 2016, table 3: a polynomial schedule with power 0.5, lr 0.08 at a
    // batch of 1024.
    {"googlenet",
     "optimizer.name=sgd optimizer.lr=0.01 optimizer.momentum=0.9 optimizer.weight_decay=2e-4 "
     "schedule.name=poly schedule.power=0.5 train.global_batch=32",
     true},
    // Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015, section 3.1.
    {"vgg19",
     "optimizer.name=sgd optimizer.lr=0.01 optimizer.momentum=0.9 optimizer.weight_decay=5e-4 "
     "schedule.name=step schedule.milestones=[30.0,60.0] train.global_batch=256",
     true},
};

// Returns the learning rate of an optimizer that the user named without a rate.
double rate_of(std::string_view optimizer) {
  if (optimizer == "adam" || optimizer == "adamw") return 1e-3;
  if (optimizer == "adagrad") return 1e-2;
  if (optimizer == "lamb") return 5e-3;
  if (optimizer == "lars") return 5;  // times optimizer.trust
  return OptimizerSpec{}.lr;
}

class Recipes {
 public:
  explicit Recipes(Config& config) : config_(config) {}

  void apply() {
    forget();
    const bool own_optimizer = given("optimizer.name");
    const std::string asked = config_.spec.optimizer.name;
    for (const ModelRecipe& recipe : kModels) {
      if (recipe.model == config_.spec.model.name) apply_model(recipe, own_optimizer, asked);
    }
    if (own_optimizer && !has("optimizer.lr"))
      set("optimizer.lr", fmt::format("{}", rate_of(asked)), fmt::format("recipe of {}", asked));
    exchange();
    threads();
    codec();
    batch();
  }

 private:
  // Resets the keys that recipes have set.
  void forget() {
    std::erase_if(config_.origins, [&](const auto& origin) {
      if (origin.second.kind != OriginKind::kRecipe) return false;
      const SchemaEntry& entry = *find_entry(origin.first);
      write(entry, config_.spec, default_of(entry), origin.first);
      return true;
    });
  }

  bool has(std::string_view key) const { return config_.origins.find(key) != config_.origins.end(); }
  bool given(std::string_view key) const {
    const auto origin = config_.origins.find(key);
    return origin != config_.origins.end() && origin->second.kind != OriginKind::kRecipe;
  }

  // Sets a key that the user has not given.
  void set(std::string_view key, const std::string& text, const std::string& recipe) {
    if (given(key)) return;
    apply_recipe(config_, *find_entry(key), recipe, text);
  }

  // The rate, momentum and decay of a recipe belong to its optimizer.
  void apply_model(const ModelRecipe& recipe, bool own_optimizer, const std::string& asked) {
    const std::string name = fmt::format("recipe of {}", recipe.model);
    const std::vector<std::string> settings = split_words(recipe.settings);
    const bool same = !own_optimizer || std::find(settings.begin(), settings.end(),
                                                  "optimizer.name=" + asked) != settings.end();
    for (const std::string& setting : settings) {
      const size_t equals = setting.find('=');
      const std::string key = setting.substr(0, equals);
      if (!same && key.starts_with("optimizer.")) continue;
      // Workers that push gradients would each clip their own, which is no update of one process.
      const ExchangeTraits& traits = exchange_traits(config_.spec);
      const bool pushes = traits.servers && !traits.local_update;
      if (key == "optimizer.clip_norm" && (!traits.clip_norm || pushes)) continue;
      set(key, setting.substr(equals + 1), name);
    }
  }

  // Returns whether recipes of exchanges and codecs may change the momentum.
  bool takes_momentum() const { return config_.spec.optimizer.name == "sgd" && !given("optimizer.momentum"); }

  // Adapts the rate for exchanges and codecs that cannot take the recipe's momentum. lr / (1 - momentum), the
  // effective step length, stays equal. A rate that the user has given does not change. If the user has given
  // a momentum, the rule does not apply.
  void with_momentum(double momentum, double factor, const std::string& recipe) {
    const OptimizerSpec& optimizer = config_.spec.optimizer;
    if (!takes_momentum()) return;
    const double rate = factor * optimizer.lr * (1 - momentum) / (1 - optimizer.momentum);
    set("optimizer.lr", fmt::format("{:.6g}", rate), recipe);
    set("optimizer.momentum", fmt::format("{}", momentum), recipe);
  }

  // Sets the rate of a codec whose updates do not have the size of the gradients. corrected: the momentum
  // comes before the codec and stays.
  void fixed_rate(double rate, bool corrected, const std::string& recipe) {
    if (config_.spec.optimizer.name != "sgd") return;
    set("optimizer.lr", fmt::format("{}", rate), recipe);
    if (!corrected) set("optimizer.momentum", "0", recipe);
  }

  void exchange() {
    const ExchangeTraits& traits = exchange_traits(config_.spec);
    const std::string name = fmt::format("recipe of {}", traits.name);
    const std::vector<std::string> settings = split_words(traits.recipe);
    for (const std::string& setting : settings) {
      const size_t equals = setting.find('=');
      set(setting.substr(0, equals), setting.substr(equals + 1), name);
    }
    if (traits.momentum >= 0) with_momentum(traits.momentum, 1 - traits.block_momentum, name);
    if (traits.block_momentum > 0 && takes_momentum())
      set("exchange.block_momentum", fmt::format("{}", traits.block_momentum), name);
    const std::string& staleness = config_.spec.exchange.staleness;
    if (traits.lockstep == Lockstep::kByStaleness && staleness != "0")
      with_momentum(0, 1, name + " at staleness " + staleness);
  }

  // Threads without locks train by plain SGD, and a sparse update has no weight decay.
  void threads() {
    const TrainSpec& train = config_.spec.train;
    if (train.threads_mode != ThreadsMode::kHogwild) return;
    const std::string name = "recipe of --threads-mode hogwild";
    with_momentum(0, 1, name);
    if (train.hogwild == HogwildUpdates::kSparse && config_.spec.optimizer.weight_decay != 0)
      set("optimizer.weight_decay", "0", name);
  }

  void codec() {
    const std::string& codec = config_.spec.exchange.codec;
    const std::string kind(first_codec(codec));
    const CodecTraits* traits = find_codec(kind, config_.spec);
    if (traits == nullptr || traits->momentum) return;
    const bool corrected = corrects_momentum(config_.spec);
    if (traits->rate > 0) return fixed_rate(traits->rate, corrected, "recipe of " + kind);
    with_momentum(corrected ? config_.spec.optimizer.momentum : 0, corrected ? traits->rate_factor : 1,
                  "recipe of " + kind);
  }

  // Rounds the batch of a recipe to the nearest one that the replicas, and the micro-batches of a pipeline,
  // share equally. A batch that the user has given stays as it is.
  void batch() {
    const auto origin = config_.origins.find("train.global_batch");
    if (origin == config_.origins.end() || given("train.global_batch")) return;
    const int64_t batch = config_.spec.train.global_batch;
    const int64_t rounded = nearest_batch(batch, batch_unit());
    const std::string recipe = origin->second.where;
    if (rounded != batch) set("train.global_batch", fmt::format("{}", rounded), recipe);
  }

  // Returns the number that the batch must be a multiple of.
  int64_t batch_unit() const {
    const TrainSpec& train = config_.spec.train;
    try {
      const MeshSpec mesh = parse_mesh(train.mesh, train.ranks);
      const bool pipeline = mesh.stage > 1 || train.threads_mode == ThreadsMode::kLayer;
      return mesh.replica * (pipeline ? config_.spec.pipeline.micro_batches : 1);
    } catch (const ConfigError&) {
      return 1;  // validate() reports the mesh, after count_ranks() has counted the ranks
    }
  }

  Config& config_;
};

}  // namespace

std::span<const ModelRecipe> model_recipes() {
  return kModels;
}

int64_t nearest_batch(int64_t batch, int64_t unit) {
  return std::max<int64_t>(1, (batch + unit / 2) / unit) * unit;
}

void apply_recipes(Config& config) {
  Recipes(config).apply();
}

std::optional<std::string> rate_warning(const Config& config) {
  const auto kind_of = [&](std::string_view key) {
    const auto origin = config.origins.find(key);
    return origin == config.origins.end() ? OriginKind::kDefault : origin->second.kind;
  };
  const OriginKind kind = kind_of("optimizer.lr");
  if (kind != OriginKind::kCode && kind != OriginKind::kFile) return std::nullopt;
  const bool chosen_later = kind_of("optimizer.name") > kind || kind_of("exchange.name") > kind ||
                            kind_of("exchange.codec") > kind || kind_of("exchange.staleness") > kind ||
                            kind_of("train.threads_mode") > kind;
  if (!chosen_later) return std::nullopt;
  Config without = config;
  without.origins.erase("optimizer.lr");
  without.spec.optimizer.lr = OptimizerSpec{}.lr;
  apply_recipes(without);
  const auto origin = without.origins.find("optimizer.lr");
  const double rate = config.spec.optimizer.lr, own = without.spec.optimizer.lr;
  const bool of_model = origin == without.origins.end() ||
                        origin->second.where == fmt::format("recipe of {}", config.spec.model.name);
  if (of_model || rate == own) return std::nullopt;
  return fmt::format(
      "optimizer.lr = {} comes from {}, but the {} has the rate {}: give --lr, or leave "
      "optimizer.lr out there",
      rate, config.origins.find("optimizer.lr")->second.where, origin->second.where, own);
}

}  // namespace starling
