#include "starling/parallel/sample_shuffle.h"

#include <torch/torch.h>

#include <numeric>
#include <random>

#include "starling/data/partition.h"

namespace starling {
namespace {

// Rows of `tensor` go to the ranks by `rows` (in order); returns what came, in rank order.
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
  group.all_to_all(whole.data_ptr(), out_bytes, result.data_ptr(), in_bytes, DataType::kUint8);
  return result;
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

  std::vector<int64_t> outgoing(p), matrix(p * p), incoming(p);
  const int64_t n = own.size();
  for (size_t r = 0; r < p; ++r)
    outgoing[r] = n * static_cast<int64_t>(r + 1) / static_cast<int64_t>(p) -
                  n * static_cast<int64_t>(r) / static_cast<int64_t>(p);
  group.all_gather(outgoing.data(), matrix.data(), p, DataType::kInt64);
  for (size_t r = 0; r < p; ++r) incoming[r] = matrix[r * p + group.rank()];

  SampleShuffle result;
  const at::Tensor input = exchange_rows(group, all.input, outgoing, incoming);
  result.samples = samples_in_memory(own.info(), input, exchange_rows(group, all.target, outgoing, incoming));
  result.moved = n - outgoing[group.rank()];
  const size_t bytes = all.input.nbytes() + all.target.nbytes();
  result.bytes = n == 0 ? 0 : bytes / static_cast<uint64_t>(n) * static_cast<uint64_t>(result.moved);
  result.seconds = to_seconds(clock.now() - start);
  return result;
}

}  // namespace starling
