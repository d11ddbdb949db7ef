#include "starling/run/ranks/same_data.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <array>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/parallel/replica/default_generator.h"

namespace starling {
namespace {

// What is compared of a data set: the number of samples, and a hash of sample 0.
using SetPrint = std::array<int64_t, 2>;

int64_t hash_of_tensor(const at::Tensor& tensor, int64_t seed) {
  const at::Tensor dense = tensor.contiguous();
  const std::hash<std::string_view> hash;
  size_t result = hash({static_cast<const char*>(dense.data_ptr()), dense.nbytes()});
  for (const int64_t size : dense.sizes()) result = result * 31 + static_cast<size_t>(size);
  return static_cast<int64_t>(result * 31 + static_cast<size_t>(seed));
}

SetPrint print_of(const Source* source) {
  if (source == nullptr) return {-1, 0};
  if (source->size() == 0) return {0, 0};
  // A transform that draws from libtorch's generator draws the same on every rank.
  const KeptGenerator kept;
  seed_default_generator(0);
  const Batch first = source->read({0}, /*epoch=*/0);
  int64_t hash = 1;
  for (const at::Tensor& input : first.inputs()) hash = hash_of_tensor(input, hash);
  for (const at::Tensor& target : first.targets()) hash = hash_of_tensor(target, hash);
  return {source->size(), hash};
}

std::string size_text(int64_t samples) {
  return samples < 0 ? "none" : fmt::format("{} samples", samples);
}

}  // namespace

void require_same_options(const FitOptions& options, Group& group) {
  if (group.size() == 1) return;
  std::string text = options.callback() ? "callback" : "";
  for (const Metric& metric : options.metrics()) text += "/" + metric.name;
  text +=
      fmt::format("/{}{}{} {}", options.optimizer() ? "optimizer" : "", options.schedule() ? "schedule" : "",
                  options.clip_value().value_or(0), options.accumulate().value_or(0));
  for (const ParameterGroup& group : options.groups())
    text += fmt::format("/{} {} {}", group.pattern, group.settings.lr.value_or(-1),
                        group.settings.weight_decay.value_or(-1));
  for (const std::string& pattern : options.blocks().patterns) text += "/" + pattern;
  for (const BlockForward& block : options.blocks().forwards) text += "/block " + block.pattern;
  for (const LayerPlan& layer : options.tensor_plan())
    text += fmt::format("/{} {}", layer.pattern, static_cast<int>(layer.cut));
  const auto own = static_cast<int64_t>(std::hash<std::string>()(text));
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), 1, DataType::kInt64);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw ConfigError(
        "Run::fit",
        fmt::format("rank {} has other metrics or options than rank 0, or only one of the two has a "
                    "callback. Give every rank the same FitOptions; a callback may "
                    "look at Run::rank()",
                    rank));
  }
}

void require_same_data(const DataSets& data, Group& group, const char* where) {
  if (group.size() == 1) return;
  const SetPrint train = print_of(data.train.get()), test = print_of(data.test.get());
  const std::array<int64_t, 4> own = {train[0], train[1], test[0], test[1]};
  std::vector<int64_t> all(own.size() * static_cast<size_t>(group.size()));
  all_gather(group, own.data(), all.data(), own.size(), DataType::kInt64);
  for (size_t at = 0; at < all.size(); ++at) {
    const size_t rank = at / own.size(), what = at % own.size();
    if (all[at] == all[what]) continue;
    const char* const part = what < 2 ? "training" : "test";
    const std::string differs =
        what % 2 == 1 ? "its sample 0 has another content"
                      : fmt::format("{} instead of {}", size_text(all[at]), size_text(all[what]));
    throw ConfigError(where,
                      fmt::format("rank {} has other {} data than rank 0: {}. Give every rank the same data "
                                  "set; Starling divides it among the ranks",
                                  rank, part, differs));
  }
}

}  // namespace starling
