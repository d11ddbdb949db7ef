// Starling's side of the tests against PyTorch, torchvision and transformers.
//
//   model_io save MODEL FILE [key=value …]
//       Saves a new model. One batch has changed its running statistics.
//   model_io forward MODEL FILE INPUT OUTPUT [key=value …]
//       Loads FILE, runs the model on the tensor "input" of INPUT and writes the tensor "output" to OUTPUT.
//   model_io copy IN OUT [shard_bytes=N]
//       Reads and writes safetensors or .pt. The copy is sharded if OUT is an index.
//
// Keys: channels, image, classes, stem, layers, width, heads, kv_heads, hidden, tokens, tied, rope_theta,
// norm_eps, vocabulary, seed, and for forward mode=train or mode=eval.
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "starling/nn/model.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/nn/safetensors/safetensors_index.h"
#include "starling/nn/state.h"
#include "starling/weights/weights_file.h"

namespace starling {
namespace {

using Options = std::map<std::string, std::string>;

int64_t number(const Options& options, const std::string& key, int64_t otherwise) {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : std::stoll(found->second);
}

std::string text(const Options& options, const std::string& key, const std::string& otherwise) {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : found->second;
}

ModelShape shape_of(const std::string& name, const Options& options) {
  if (name == "gpt" || name == "llama")
    return {{number(options, "tokens", 32)}, number(options, "vocabulary", 61), true};
  const int64_t image = number(options, "image", 28);
  return {{number(options, "channels", 1), image, image}, number(options, "classes", 10), false};
}

Model make(const std::string& name, const Options& options) {
  ModelSpec spec;
  spec.name = name;
  spec.stem = text(options, "stem", "auto");
  spec.layers = number(options, "layers", 2);
  spec.width = number(options, "width", 48);
  spec.heads = number(options, "heads", 4);
  spec.tokens = number(options, "tokens", 32);
  spec.kv_heads = number(options, "kv_heads", 0);
  spec.hidden = number(options, "hidden", 0);
  spec.tied = text(options, "tied", "false") == "true";
  spec.rope_theta = std::stod(text(options, "rope_theta", "10000"));
  spec.norm_eps = std::stod(text(options, "norm_eps", "1e-5"));
  torch::manual_seed(static_cast<uint64_t>(number(options, "seed", 1)));
  return zoo_model(spec, shape_of(name, options))();
}

void save(const std::string& name, const std::string& file, const Options& options) {
  const torch::NoGradGuard no_grad;
  const Model model = make(name, options);
  const ModelShape shape = shape_of(name, options);
  if (!shape.text) {
    std::vector<int64_t> batch = shape.input_shape;
    batch.insert(batch.begin(), 4);
    model.forward(torch::randn(batch) * 2 + 1);
  }
  save_model(*model.module, file);
}

void forward(const std::string& name, const std::string& file, const std::string& input,
             const std::string& output, const Options& options) {
  const torch::NoGradGuard no_grad;
  const Model model = make(name, options);
  load_model(*model.module, file);
  model.module->train(text(options, "mode", "eval") == "train");
  write_safetensors(output, {{"output", model.forward(read_safetensors(input).tensors.at("input"))}});
}

void copy(const std::string& in, const std::string& out, const Options& options) {
  const TensorFile file = read_weights(in);
  if (is_safetensors_index(out)) {
    write_safetensors_sharded(out, file.tensors,
                              static_cast<size_t>(number(options, "shard_bytes", 1 << 20)));
  } else if (weights::is_pt_name(out)) {
    write_weights(out, file.tensors);
  } else {
    write_safetensors(out, file.tensors, file.metadata);
  }
}

int run(const std::vector<std::string>& words) {
  std::vector<std::string> plain;
  Options options;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      plain.push_back(word);
    } else {
      options[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  if (plain.size() == 3 && plain[0] == "save") {
    save(plain[1], plain[2], options);
  } else if (plain.size() == 5 && plain[0] == "forward") {
    forward(plain[1], plain[2], plain[3], plain[4], options);
  } else if (plain.size() == 3 && plain[0] == "copy") {
    copy(plain[1], plain[2], options);
  } else {
    std::fprintf(stderr, "usage: model_io save|forward|copy …; see the top of tests/python/model_io.cc\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  try {
    return starling::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_io: %s\n", error.what());
    return 1;
  }
}
