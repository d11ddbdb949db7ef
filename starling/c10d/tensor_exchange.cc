#include "starling/c10d/tensor_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "starling/c10d/tensor_bytes.h"

namespace starling {
namespace {

// Returns the first counts[r] rows of each rank r, one after another.
at::Tensor rows_of_all(Group& group, const at::Tensor& rows, const std::vector<int64_t>& counts) {
  auto sizes = rows.sizes().vec();
  sizes[0] = *std::max_element(counts.begin(), counts.end());
  const at::Tensor padded = at::zeros(sizes, rows.scalar_type());
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  sizes.insert(sizes.begin(), group.size());
  const at::Tensor all = at::empty(sizes, rows.scalar_type());
  gather_all(group, padded, all);
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group.size(); ++r) parts.push_back(all[r].narrow(0, 0, counts[r]));
  return at::cat(parts);
}

}  // namespace

void broadcast_from(Group& group, const at::Tensor& tensor, int root) {
  const Travel travel = travel_of(tensor.scalar_type());
  change_in_place(tensor, [&](void* data) {
    broadcast(group, data, element_count(tensor) * travel.per_element, travel.type, root);
  });
}

void reduce_in_place(Group& group, const at::Tensor& tensor, const ReduceCall& call) {
  const at::Tensor flat = call.prepared(tensor).contiguous();
  all_reduce(group, flat.mutable_data_ptr(), element_count(flat), call.type, call.op);
  store(flat, tensor);
}

void gather_all(Group& group, const at::Tensor& input, const at::Tensor& output) {
  const at::Tensor in = input.contiguous();
  const Travel travel = travel_of(in.scalar_type());
  all_gather(group, in.const_data_ptr(), output.mutable_data_ptr(), element_count(in) * travel.per_element,
             travel.type);
}

void gather_into(Group& group, const at::Tensor& input, const at::Tensor& output) {
  const at::Tensor out = writable(output);
  gather_all(group, input, out);
  store(out, output);
}

void reduce_into(Group& group, const at::Tensor& input, const at::Tensor& output, const ReduceCall& call) {
  const at::Tensor in = call.prepared(input).contiguous();
  const at::Tensor out = writable(output);
  reduce_scatter(group, in.const_data_ptr(), out.mutable_data_ptr(), element_count(out), call.type, call.op);
  store(out, output);
}

void exchange(Group& group, const at::Tensor& input, const std::vector<size_t>& in_counts,
              const at::Tensor& out, const std::vector<size_t>& out_counts) {
  const at::Tensor in = input.contiguous();
  all_to_all(group, in.const_data_ptr(), in_counts, out.mutable_data_ptr(), out_counts,
             travel_of(in.scalar_type()).type);
}

at::Tensor sparse_sum(Group& group, const at::Tensor& input) {
  const at::Tensor own = input.coalesce();
  const int64_t mine = own._nnz();
  std::vector<int64_t> counts(static_cast<size_t>(group.size()));
  all_gather(group, &mine, counts.data(), 1, DataType::kInt64);
  const at::Tensor indices = rows_of_all(group, own.indices().t(), counts).t();
  const at::Tensor values = rows_of_all(group, own.values(), counts);
  return at::sparse_coo_tensor(indices, values, input.sizes()).coalesce();
}

}  // namespace starling
