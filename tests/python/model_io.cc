// Our side of the tests against PyTorch, torchvision and transformers:
//   model_io save MODEL FILE [key=value …]                    a fresh model, its running statistics moved by one batch
//   model_io forward MODEL FILE INPUT OUTPUT [key=value …]    loads FILE; reads tensor "input", writes tensor "output"
//   model_io copy IN OUT [shard_bytes=N]                      reads and writes safetensors; sharded if OUT is an index
// Keys: channels image classes stem layers width heads tokens vocabulary seed, and mode=train|eval (forward).
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "starling/nn/model.h"
#include "starling/nn/safetensors.h"
#include "starling/nn/safetensors_index.h"
#include "starling/nn/state.h"

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
  if (name == "gpt") return {{number(options, "tokens", 32)}, number(options, "vocabulary", 61), true};
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
  const TensorFile file = read_safetensors(in);
  if (is_safetensors_index(out)) {
    write_safetensors_sharded(out, file.tensors,
                              static_cast<size_t>(number(options, "shard_bytes", 1 << 20)));
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
