#include "starling/nn/tensor_parallel/tensor_group.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "starling/c10d/data_type.h"

namespace starling {

template <typename F>
void TensorGroup::guarded(const F& operation) {
  try {
    operation();
  } catch (...) {
    if (on_fault_) on_fault_();
    throw;
  }
}

template <typename F>
void TensorGroup::measured(const std::string& layer, size_t element_bytes, F operation) {
  const TrafficCount before = group_.traffic();
  const Nanoseconds begin = clock_.now();
  guarded(operation);
  seconds_ += to_seconds(clock_.now() - begin);
  const TrafficCount after = group_.traffic();
  LayerTraffic& own = traffic_[layer];
  const auto bytes = static_cast<double>(after.received() - before.received());
  own.bytes += bytes;
  own.elements += bytes / static_cast<double>(element_bytes);
  ++own.calls;
}

// Windows live as long as the group, so each new window is at least twice as large as the last.
std::byte* TensorGroup::window(size_t bytes) {
  if (!window_ || window_->bytes() < bytes)
    guarded([&] {
      // If another rank makes a different call, this all-reduce reports that at once. allocate_window() alone
      // would wait for the rank in the store until its timeout.
      auto most = static_cast<int64_t>(bytes);
      starling::all_reduce(group_, &most, 1, DataType::kInt64, ReduceOp::kMax);
      const auto asked = static_cast<size_t>(most);
      window_ = group_.allocate_window(window_ ? std::max(asked, 2 * window_->bytes()) : asked);
    });
  return window_->region(group_.local_rank());
}

at::Tensor TensorGroup::all_reduce(const at::Tensor& x, ReduceOp op, const std::string& layer) {
  if (size() == 1 || x.numel() == 0) return x.clone();
  const at::Tensor place = at::from_blob(window(x.nbytes()), x.sizes(), x.options());
  place.copy_(x);
  measured(layer, x.element_size(), [&] {
    starling::all_reduce(group_, place.data_ptr(), place.numel(), data_type_of(x.scalar_type()), op);
  });
  return place.clone();
}

at::Tensor TensorGroup::sum(const at::Tensor& x, const std::string& layer) {
  return all_reduce(x, ReduceOp::kSum, layer);
}

at::Tensor TensorGroup::maximum(const at::Tensor& x, const std::string& layer) {
  return all_reduce(x, ReduceOp::kMax, layer);
}

at::Tensor TensorGroup::gather(const at::Tensor& part, int64_t dim, int64_t whole, const std::string& layer) {
  if (size() == 1) return part.clone();
  std::vector<int64_t> sizes = part.sizes().vec();
  const auto sizes_of = [&](int rank) {
    sizes[static_cast<size_t>(dim)] = part_of_range(whole, size(), rank).count();
    return sizes;
  };
  // Parts may differ by one entry, and all ranks send as much as the longest part.
  int64_t longest = 0;
  for (int r = 0; r < size(); ++r) longest = std::max(longest, part_of_range(whole, size(), r).count());
  sizes[static_cast<size_t>(dim)] = longest;
  const int64_t each = c10::multiply_integers(sizes);
  at::Tensor own = part.contiguous();
  if (own.numel() < each) {
    own = at::zeros({each}, part.options());
    own.narrow(0, 0, part.numel()).copy_(part.reshape({-1}));
  }
  const at::Tensor all = at::empty({size() * each}, part.options());
  measured(layer, part.element_size(), [&] {
    starling::all_gather(group_, own.data_ptr(), all.data_ptr(), each, data_type_of(part.scalar_type()));
  });
  std::vector<at::Tensor> parts;
  for (int r = 0; r < size(); ++r) {
    const std::vector<int64_t> shape = sizes_of(r);
    parts.push_back(all.narrow(0, r * each, c10::multiply_integers(shape)).view(shape));
  }
  return at::cat(parts, dim);
}

at::Tensor TensorGroup::sum_scatter(const at::Tensor& x, const std::string& layer) {
  if (size() == 1) return x.clone();
  const at::Tensor in = x.contiguous();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] /= size();
  const at::Tensor out = at::empty(sizes, x.options());
  measured(layer, x.element_size(), [&] {
    starling::reduce_scatter(group_, in.data_ptr(), out.data_ptr(), out.numel(),
                             data_type_of(x.scalar_type()), ReduceOp::kSum);
  });
  return out;
}

std::vector<at::Tensor> TensorGroup::exchange(const std::vector<at::Tensor>& pieces,
                                              const std::vector<std::vector<int64_t>>& sizes,
                                              const std::string& layer) {
  std::vector<size_t> out_counts, in_counts;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& piece : pieces) {
    flat.push_back(piece.reshape({-1}));
    out_counts.push_back(static_cast<size_t>(piece.numel()));
  }
  for (const auto& shape : sizes) in_counts.push_back(static_cast<size_t>(c10::multiply_integers(shape)));
  const at::Tensor out = at::cat(flat);
  int64_t received = 0;
  for (const size_t count : in_counts) received += static_cast<int64_t>(count);
  const at::Tensor in = at::empty({received}, out.options());
  measured(layer, out.element_size(), [&] {
    starling::all_to_all(group_, out.data_ptr(), out_counts, in.data_ptr(), in_counts,
                         data_type_of(out.scalar_type()));
  });
  std::vector<at::Tensor> result;
  int64_t at = 0;
  for (const auto& shape : sizes) {
    const int64_t count = c10::multiply_integers(shape);
    result.push_back(in.narrow(0, at, count).view(shape));
    at += count;
  }
  return result;
}

void TensorGroup::reset_traffic() {
  traffic_.clear();
  seconds_ = 0;
}

}  // namespace starling
