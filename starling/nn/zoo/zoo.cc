#include <ATen/ops/cross_entropy_loss.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/nn/layers/batch_norm.h"
#include "starling/nn/model.h"
#include "starling/nn/zoo/zoo_models.h"
#include "starling/spec/text_model.h"

namespace starling {
namespace {

void check_text_model(const ModelSpec& spec, const ModelShape& shape) {
  const auto positive = [](const char* key, int64_t value) {
    if (value < 1) throw ConfigError(key, fmt::format("is {}, must be at least 1", value));
  };
  positive("model.layers", spec.layers);
  positive("model.width", spec.width);
  positive("model.heads", spec.heads);
  positive("model.tokens", spec.tokens);
  if (const auto fault = text_model_fault(spec))
    throw ConfigError(std::string(fault->keys.front()), fault->message);
  if (!shape.input_shape.empty() && shape.input_shape[0] > spec.tokens) {
    throw ConfigError("model.tokens", fmt::format("is {}, but a sample of the data has {} tokens",
                                                  spec.tokens, shape.input_shape[0]));
  }
}

void check_dropout(const ModelSpec& spec) {
  if (spec.dropout >= 0.0 && spec.dropout < 1.0) return;
  throw ConfigError("model.dropout", fmt::format("is {}, must be at least 0 and below 1", spec.dropout));
}

void check_kind(const ModelSpec& spec, const ModelShape& shape) {
  const bool wants_text = spec.reads_text();
  if (wants_text != shape.text) {
    throw ConfigError(
        "model.name",
        wants_text
            ? fmt::format("{} reads text, but the data are images; use data.source = text:FILE or grammar",
                          spec.name)
            : fmt::format("{} reads images, but the data are text; use model.name = gpt or llama",
                          spec.name));
  }
  if (!wants_text && spec.name != "mlp" && shape.input_shape.size() != 3) {
    throw ConfigError(
        "model.name",
        fmt::format("{} reads images [channels, height, width], the data has samples of shape [{}]",
                    spec.name, fmt::join(shape.input_shape, ", ")));
  }
}

// Returns the size of the last layer: what the user asked for, otherwise what the data has.
int64_t outputs(const ModelSpec& spec, const ModelShape& shape) {
  const char* key = shape.text ? "model.vocabulary" : "model.classes";
  const int64_t asked = shape.text ? spec.vocabulary : spec.classes;
  const int64_t n = asked > 0 ? asked : shape.classes;
  if (n < 1) throw ConfigError(key, "is 0 and the data does not say how many there are; set it");
  if (n < shape.classes) throw ConfigError(key, fmt::format("is {}, but the data has {}", n, shape.classes));
  return n;
}

ModelFactory model_factory(const ModelSpec& spec, const ModelShape& shape, int64_t classes) {
  if (spec.name == "mlp") return make_mlp(spec, shape, classes);
  if (spec.name == "lenet5") return make_lenet5(shape, classes);
  if (spec.name == "resnet18") return make_resnet(18, spec, shape, classes);
  if (spec.name == "resnet34") return make_resnet(34, spec, shape, classes);
  if (spec.name == "resnet50") return make_resnet(50, spec, shape, classes);
  if (spec.name == "alexnet") return make_alexnet(spec, shape, classes);
  if (spec.name == "nin") return make_nin(spec, shape, classes);
  if (spec.name == "googlenet") return make_googlenet(spec, shape, classes);
  if (spec.name == "vgg19") return make_vgg19(spec, shape, classes);
  if (spec.name == "llama") return make_llama(spec, classes);
  return make_gpt(spec, classes);
}

void check_name(const std::string& name) {
  std::vector<std::string> names;
  for (const ZooEntry& entry : zoo()) names.push_back(entry.name);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string near = nearest(name, names);
  throw ConfigError("model.name", fmt::format("no model \"{}\"{}; `starling zoo ls` lists: {}", name,
                                              near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near),
                                              fmt::join(names, " ")));
}

}  // namespace

const std::vector<ZooEntry>& zoo() {
  static const std::vector<ZooEntry> entries = {
      {"mlp", "multi-layer perceptron, model.widths from inputs to classes"},
      {"lenet5", "LeNet-5 with ReLU and max-pooling, for small images"},
      {"resnet18", "ResNet-18 as in torchvision, model.stem imagenet or cifar"},
      {"resnet34", "ResNet-34 as in torchvision, model.stem imagenet or cifar"},
      {"resnet50", "ResNet-50 as in torchvision, model.stem imagenet or cifar"},
      {"alexnet", "AlexNet in one group, with the original's channels, for large pictures"},
      {"nin", "Network in Network for ImageNet, without fully connected layers"},
      {"googlenet", "GoogLeNet as published: no batch norm, both auxiliary heads in training"},
      {"vgg19", "VGG-19 as in torchvision"},
      {"gpt", "GPT-2 as in Hugging Face: model.layers, .width, .heads, .tokens"},
      {"llama", "Llama as in Hugging Face: the keys of gpt and model.kv_heads, .hidden, .tied, .rope_theta"},
  };
  return entries;
}

ModelShape usual_shape(const ModelSpec& spec) {
  if (spec.name == "gpt") return {{spec.tokens}, 50257, true};
  if (spec.name == "llama") return {{spec.tokens}, 32000, true};
  if (spec.name == "lenet5") return {{1, 28, 28}, 10, false};
  if (spec.name == "mlp" && spec.widths.size() >= 2) {
    return {{spec.widths.front()}, spec.widths.back(), false};
  }
  return {{3, 224, 224}, 1000, false};
}

void check_pixels(const std::string& model, const ModelShape& shape, int64_t least) {
  const int64_t h = shape.input_shape[1], w = shape.input_shape[2];
  if (h >= least && w >= least) return;
  throw ConfigError(
      "model.name",
      fmt::format("{} needs pictures of at least {}×{} pixels, the data has {}×{}; use lenet5 or "
                  "a resnet, or larger pictures",
                  model, least, least, h, w));
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target) {
  if (logits.dim() == 2) return at::cross_entropy_loss(logits, target);
  return at::cross_entropy_loss(logits.flatten(0, -2), target.flatten());
}

ModelFactory zoo_model(const ModelSpec& spec, const ModelShape& shape, const ModelHooks& hooks) {
  check_name(spec.name);
  check_kind(spec, shape);
  check_dropout(spec);
  if (spec.reads_text()) check_text_model(spec, shape);
  const int64_t classes = outputs(spec, shape);
  ModelFactory local = model_factory(spec, shape, classes);
  if (spec.batch_norm == BatchNorm::kLocal || !hooks.all_reduce_sum) return local;
  return [local, hooks] {
    Model model = local();
    sync_batch_norm(*model.module, hooks.all_reduce_sum);
    return model;
  };
}

}  // namespace starling
