#include "starling/parallel/replica/sample_shuffle.h"

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>

#include "starling/base/error.h"
#include "starling/data/sample_partition.h"

namespace starling {
namespace {

// Sends rows of `tensor` to the ranks, in order, rows[r] of them to rank r. Returns the received rows in rank
// order.
at::Tensor exchange_rows(Group& group, const at::Tensor& tensor, const std::vector<int64_t>& rows,
                         const std::vector<int64_t>& incoming) {
  const at::Tensor whole = tensor.contiguous();
  const size_t row_bytes = whole.size(0) == 0 ? 0 : whole.nbytes() / whole.size(0);
  std::vector<size_t> out_bytes, in_bytes;
  for (const int64_t n : rows) out_bytes.push_back(static_cast<size_t>(n) * row_bytes);
  for (const int64_t n : incoming) in_bytes.push_back(static_cast<size_t>(n) * row_bytes);
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes[0] = std::accumulate(incoming.begin(), incoming.end(), int64_t{0});
  at::Tensor result = at::empty(sizes, whole.options());
  all_to_all(group, whole.data_ptr(), out_bytes, result.data_ptr(), in_bytes, DataType::kUint8);
  return result;
}

// Throws ConfigError on all ranks unless the samples of all ranks have tensors of one shape and type.
void check_rows(Group& group, const Batch& all) {
  std::vector<int64_t> words;
  for (const std::vector<at::Tensor>& tensors : {all.inputs(), all.targets()}) {
    words.push_back(-1);
    for (const at::Tensor& tensor : tensors) {
      words.push_back(-2 - static_cast<int64_t>(tensor.scalar_type()));
      words.insert(words.end(), tensor.sizes().begin() + 1, tensor.sizes().end());
    }
  }
  const auto own = static_cast<int64_t>(std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(words.data()), words.size() * sizeof(int64_t)}));
  std::vector<int64_t> others(static_cast<size_t>(group.size()));
  all_gather(group, &own, others.data(), 1, DataType::kInt64);
  if (std::count(others.begin(), others.end(), own) == group.size()) return;
  throw ConfigError(
      "exchange.name",
      "parallel-sgd moves samples between the ranks, which needs samples of one shape, but samples "
      "of this data set differ; pad all of them to one length, or use another exchange");
}

}  // namespace

SampleShuffle shuffle_samples(Group& group, const Clock& clock, const Source& own, uint64_t seed) {
  const Nanoseconds start = clock.now();
  const auto p = static_cast<size_t>(group.size());
  std::vector<int64_t> order(own.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(group.rank()));
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  const Batch all = own.read(order, 0);
  check_rows(group, all);

  std::vector<int64_t> outgoing(p), matrix(p * p), incoming(p);
  const int64_t n = own.size();
  for (size_t r = 0; r < p; ++r)
    outgoing[r] = n * static_cast<int64_t>(r + 1) / static_cast<int64_t>(p) -
                  n * static_cast<int64_t>(r) / static_cast<int64_t>(p);
  all_gather(group, outgoing.data(), matrix.data(), p, DataType::kInt64);
  for (size_t r = 0; r < p; ++r) incoming[r] = matrix[r * p + group.rank()];

  SampleShuffle result;
  size_t bytes = 0;
  std::vector<at::Tensor> inputs = all.inputs(), targets = all.targets();
  for (std::vector<at::Tensor>* tensors : {&inputs, &targets}) {
    for (at::Tensor& tensor : *tensors) {
      bytes += tensor.nbytes();
      tensor = exchange_rows(group, tensor, outgoing, incoming);
    }
  }
  result.samples = samples_in_memory(own.info(), make_batch(std::move(inputs), std::move(targets)));
  result.moved = n - outgoing[group.rank()];
  result.bytes = n == 0 ? 0 : bytes / static_cast<uint64_t>(n) * static_cast<uint64_t>(result.moved);
  result.seconds = to_seconds(clock.now() - start);
  return result;
}

}  // namespace starling
