#include "starling/commands/sample.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/data/formats/text_store.h"
#include "starling/data/source_factory.h"
#include "starling/net/security/data_security.h"
#include "starling/nn/model.h"
#include "starling/nn/state.h"

namespace starling {
namespace {

// Returns the characters of the data in the order of their ids.
std::string vocabulary_of_data(const RunSpec& spec) {
  const DataSets data =
      open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security));
  const SourceInfo& info = data.train->info();
  if (info.text) return info.vocabulary;
  throw ConfigError(
      "data.source",
      fmt::format("{} is no text, and the weights do not name the characters of the model: name the "
                  "text that the model was trained on by --data text:FILE",
                  spec.data.source));
}

std::vector<int64_t> ids_of(const std::u32string& text, const Vocabulary& vocabulary) {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char32_t character : text) {
    ids.push_back(vocabulary.id_of(character));
    if (ids.back() < 0)
      throw ConfigError("--prompt", fmt::format("the model does not know the character \"{}\". It knows: {}",
                                                encode_utf8({character}), vocabulary.text()));
  }
  return ids;
}

// Returns an index drawn from softmax(logits / temperature) over the `top_k` largest. `uniform` is in [0, 1).
int64_t draw(const at::Tensor& logits, const SampleOptions& sample, double uniform) {
  const at::Tensor scores = logits.to(at::kDouble).contiguous();
  const double* values = scores.data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(scores.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  if (sample.temperature == 0) return order.front();
  if (sample.top_k > 0 && sample.top_k < std::ssize(order)) order.resize(static_cast<size_t>(sample.top_k));
  std::vector<double> weights;
  weights.reserve(order.size());
  for (const int64_t id : order)
    weights.push_back(std::exp((values[id] - values[order.front()]) / sample.temperature));
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.front();
}

}  // namespace

std::string continued_text(const RunSpec& spec, const std::string& vocabulary, const SampleOptions& sample) {
  if (!spec.model.reads_text())
    throw ConfigError(
        "model.name",
        fmt::format("{} is no model of text: give the folder of a run of gpt or llama", spec.model.name));
  if (sample.prompt.empty()) throw ConfigError("--prompt", "the text is empty: give at least one character");
  const std::string known = vocabulary.empty() ? vocabulary_of_data(spec) : vocabulary;
  const Vocabulary characters(decode_utf8(known, "the vocabulary of the model"));
  const std::u32string alphabet = decode_utf8(characters.text(), "the vocabulary of the model");
  std::vector<int64_t> ids = ids_of(decode_utf8(sample.prompt, "--prompt"), characters);

  const Model model = zoo_model(spec.model, {{spec.model.tokens}, characters.size(), true})();
  load_model(*model.module, spec.model.init);
  model.module->eval();
  const torch::NoGradGuard no_grad;
  std::u32string added;
  for (int64_t i = 0; i < sample.length; ++i) {
    const int64_t seen = std::min(std::ssize(ids), spec.model.tokens);
    const at::Tensor input = at::tensor(std::vector<int64_t>(ids.end() - seen, ids.end()), at::kLong);
    const at::Tensor output = model.forward(input.unsqueeze(0));
    const at::Tensor logits = output.select(0, 0).select(0, seen - 1);  // of the last position
    const double uniform = uniform_of(key_of(spec.train.seed, 0x73616d706c65, static_cast<uint64_t>(i)));
    const int64_t id = draw(logits.narrow(0, 0, characters.size()), sample, uniform);
    ids.push_back(id);
    added.push_back(alphabet[static_cast<size_t>(id)]);
  }
  return encode_utf8(added);
}

}  // namespace starling
