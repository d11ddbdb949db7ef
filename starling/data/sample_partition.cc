#include "starling/data/sample_partition.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr const char* kKey = "data.partition";
constexpr int64_t kRead = 1024;  // number of samples that are read at once for their labels

void shuffle(std::vector<int64_t>& values, std::mt19937_64& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
}

std::vector<std::vector<int64_t>> cut_equally(const std::vector<int64_t>& order, int ranks) {
  std::vector<std::vector<int64_t>> parts(ranks);
  const size_t n = order.size();
  for (int r = 0; r < ranks; ++r)
    parts[r].assign(order.begin() + n * r / ranks, order.begin() + n * (r + 1) / ranks);
  return parts;
}

// Returns one draw of Dirichlet(alpha) over the ranks, from normalized gamma variates.
std::vector<double> dirichlet(double alpha, int ranks, std::mt19937_64& random) {
  std::gamma_distribution<double> gamma(alpha, 1.0);
  std::vector<double> share(ranks);
  double sum = 0;
  for (double& s : share) sum += s = std::max(gamma(random), 1e-300);
  for (double& s : share) s /= sum;
  return share;
}

std::vector<std::vector<int64_t>> by_dirichlet(const std::vector<int64_t>& labels, int ranks, double alpha,
                                               std::mt19937_64& random) {
  const int64_t classes = *std::max_element(labels.begin(), labels.end()) + 1;
  std::vector<std::vector<int64_t>> of_class(classes), parts(ranks);
  for (size_t i = 0; i < labels.size(); ++i) of_class[labels[i]].push_back(static_cast<int64_t>(i));
  for (std::vector<int64_t>& samples : of_class) {
    shuffle(samples, random);
    const std::vector<double> share = dirichlet(alpha, ranks, random);
    double until = 0;
    size_t begin = 0;
    for (int r = 0; r < ranks; ++r) {
      until += share[r];
      const size_t end = r + 1 == ranks ? samples.size()
                                        : std::min(samples.size(),
                                                   static_cast<size_t>(std::llround(until * samples.size())));
      for (; begin < end; ++begin) parts[r].push_back(samples[begin]);
    }
  }
  for (std::vector<int64_t>& part : parts) {  // every rank needs at least one sample
    if (!part.empty()) continue;
    auto largest = std::max_element(parts.begin(), parts.end(),
                                    [](const auto& a, const auto& b) { return a.size() < b.size(); });
    part.push_back(largest->back());
    largest->pop_back();
  }
  return parts;
}

class Subset final : public Source {
 public:
  Subset(std::shared_ptr<const Source> source, std::vector<int64_t> indices)
      : source_(std::move(source)), indices_(std::move(indices)) {}
  const SourceInfo& info() const override { return source_->info(); }
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  Batch read(const std::vector<int64_t>& wanted, int64_t epoch) const override {
    std::vector<int64_t> indices;
    for (const int64_t i : wanted) indices.push_back(indices_.at(i));
    return source_->read(indices, epoch);
  }

 private:
  std::shared_ptr<const Source> source_;
  std::vector<int64_t> indices_;
};

class InMemory final : public Source {
 public:
  InMemory(const SourceInfo& info, Batch all) : info_(info), all_(std::move(all)) {}
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return all_.size(); }
  Batch read(const std::vector<int64_t>& wanted, int64_t) const override {
    const at::Tensor indices = at::tensor(wanted, at::kLong);
    return make_batch(selected(all_.inputs(), indices), selected(all_.targets(), indices));
  }

 private:
  static std::vector<at::Tensor> selected(std::vector<at::Tensor> tensors, const at::Tensor& indices) {
    for (at::Tensor& tensor : tensors) tensor = tensor.index_select(0, indices);
    return tensors;
  }

  SourceInfo info_;
  Batch all_;
};

}  // namespace

std::vector<std::vector<int64_t>> partition_samples(const std::vector<int64_t>& labels, int ranks,
                                                    const std::string& kind, uint64_t seed) {
  if (static_cast<int64_t>(labels.size()) < ranks)
    throw ConfigError(kKey, fmt::format("{} samples cannot be divided among {} ranks: use fewer ranks",
                                        labels.size(), ranks));
  std::mt19937_64 random(seed ^ 0x9a47171ull);
  std::vector<int64_t> order(labels.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  if (kind == "iid") {
    shuffle(order, random);
    return cut_equally(order, ranks);
  }
  if (kind == "by-label") {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return labels[a] < labels[b]; });
    return cut_equally(order, ranks);
  }
  static constexpr std::string_view kDirichlet = "dirichlet=";
  if (std::string_view(kind).starts_with(kDirichlet)) {
    char* end = nullptr;
    const std::string text = kind.substr(kDirichlet.size());
    const double alpha = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && alpha > 0) return by_dirichlet(labels, ranks, alpha, random);
  }
  throw ConfigError(
      kKey, fmt::format("\"{}\" is not a partition: use iid, by-label or dirichlet=A with A above 0", kind));
}

std::vector<int64_t> labels_of(const Source& source) {
  if (source.info().text)
    throw ConfigError(kKey, "text has no classes by which to divide it: use --partition iid");
  std::vector<int64_t> labels;
  for (int64_t begin = 0; begin < source.size(); begin += kRead) {
    std::vector<int64_t> indices(std::min(kRead, source.size() - begin));
    std::iota(indices.begin(), indices.end(), begin);
    at::Tensor target = source.read(indices, 0).target;
    const bool classes = target.defined() && target.scalar_type() == at::kLong &&
                         target.numel() == static_cast<int64_t>(indices.size());
    if (!classes)
      throw ConfigError(kKey,
                        "the samples are divided by their classes, but the first target of this data set "
                        "is not one class [n] int64 per sample: use --partition iid");
    target = target.contiguous();
    if (const auto least = target.min().item<int64_t>(); least < 0)
      throw ConfigError(kKey,
                        fmt::format("the samples are divided by their classes, and a class of this data "
                                    "set is {}: use --partition iid, or classes from 0 on",
                                    least));
    labels.insert(labels.end(), target.data_ptr<int64_t>(), target.data_ptr<int64_t>() + target.numel());
  }
  return labels;
}

std::shared_ptr<const Source> subset_of(std::shared_ptr<const Source> source, std::vector<int64_t> indices) {
  return std::make_shared<Subset>(std::move(source), std::move(indices));
}

std::shared_ptr<const Source> samples_in_memory(const SourceInfo& info, Batch all) {
  return std::make_shared<InMemory>(info, std::move(all));
}

}  // namespace starling
