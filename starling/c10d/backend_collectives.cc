// The collectives of StarlingBackend. Each one checks its tensors and calls the group.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_calls.h"
#include "starling/c10d/tensor_exchange.h"

namespace starling {
namespace {

using Tensors = StarlingBackend::Tensors;
using Counts = std::vector<size_t>;

size_t travelling_count(const at::Tensor& tensor) {
  return element_count(tensor) * travel_of(tensor.scalar_type()).per_element;
}

// Returns the number of elements for each rank, as they are sent, of splits along dim 0.
Counts split_counts(const char* operation, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                    int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  auto row = static_cast<int64_t>(travel_of(tensor.scalar_type()).per_element);
  for (int64_t d = 1; d < tensor.dim(); ++d) row *= tensor.size(d);
  if (splits.empty()) {
    if (rows % size != 0) {
      throw Error(ErrorCode::kConfig, fmt::format("{}: {} rows do not divide among {} ranks; give splits",
                                                  operation, rows, size));
    }
    return Counts(size, static_cast<size_t>(rows / size * row));
  }
  const bool negative = std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; });
  if (splits.size() != static_cast<size_t>(size) || negative ||
      std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: splits [{}] of {} rows in a group of {}; give one per rank, with the "
                            "rows as their sum",
                            operation, fmt::join(splits, ", "), rows, size));
  }
  Counts counts;
  for (const int64_t n : splits) counts.push_back(static_cast<size_t>(n * row));
  return counts;
}

Counts counts_of(const Tensors& tensors) {
  Counts counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(travelling_count(tensor));
  return counts;
}

// Returns `count` for rank `root` and 0 for the remaining ranks.
Counts only_root(int size, int64_t root, size_t count) {
  Counts counts(size, 0);
  counts[root] = count;
  return counts;
}

}  // namespace

void StarlingBackend::check_ratio(const char* operation, const at::Tensor& large,
                                  const at::Tensor& small) const {
  check_same_type(operation, {large, small});
  if (large.numel() == small.numel() * size_) return;
  throw Error(
      ErrorCode::kConfig,
      fmt::format("{}: tensors of {} and {} {} elements in a group of {}; give {} times the elements",
                  operation, large.numel(), small.numel(), c10::toString(small.scalar_type()), size_, size_));
}

void StarlingBackend::check_list(const char* operation, const std::vector<Tensors>& lists,
                                 const at::Tensor& each) const {
  if (lists.size() != 1 || lists[0].size() != static_cast<size_t>(size_)) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: give one list of {} tensors, one per rank", operation, size_));
  }
  for (const at::Tensor& tensor : lists[0]) {
    check_same_type(operation, {tensor, each});
    if (tensor.numel() == each.numel()) continue;
    throw Error(ErrorCode::kConfig, fmt::format("{}: tensors of {} and {} elements; give equal ones",
                                                operation, tensor.numel(), each.numel()));
  }
}

void StarlingBackend::check_no_list(const char* operation, const std::vector<Tensors>& lists) const {
  if (lists.empty() || (lists.size() == 1 && lists[0].empty())) return;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: rank {} is not the root and gives a list; give none", operation, rank_));
}

StarlingBackend::WorkPtr StarlingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_single("broadcast", tensors);
  check_rank("broadcast", options.rootRank);
  return collective(c10d::OpType::BROADCAST, "starling:broadcast", options, tensors,
                    [tensor = tensors[0], root = static_cast<int>(options.rootRank)](Group& group) {
                      broadcast_from(group, tensor, root);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse())
    return allreduce_sparse(tensors, options);
  check_single("all_reduce", tensors);
  const ReduceCall call = reduce_call(options.reduceOp, tensors[0].scalar_type());
  return collective(c10d::OpType::ALLREDUCE, "starling:all_reduce", options, tensors,
                    [tensor = tensors[0], call](Group& group) { reduce_in_place(group, tensor, call); });
}

StarlingBackend::WorkPtr StarlingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_single("reduce", tensors);
  check_rank("reduce", options.rootRank);
  const ReduceCall call = reduce_call(options.reduceOp, tensors[0].scalar_type());
  const bool is_root = options.rootRank == rank_;
  return collective(c10d::OpType::REDUCE, "starling:reduce", options, tensors,
                    [tensor = tensors[0], call, is_root](Group& group) {
                      reduce_in_place(group, is_root ? tensor : tensor.clone(at::MemoryFormat::Contiguous),
                                      call);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  check_single("all_gather", inputs);
  check_list("all_gather", outputs, inputs[0]);
  return collective(c10d::OpType::ALLGATHER, "starling:all_gather", options, outputs[0],
                    [outputs = outputs[0], input = inputs[0]](Group& group) {
                      const at::Tensor all = room_for(element_count(input) * outputs.size(), input);
                      gather_all(group, input, all);
                      distribute(all, outputs);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::all_gather_single(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  check_ratio("all_gather", output, input);
  return collective(c10d::OpType::_ALLGATHER_BASE, "starling:all_gather", options, {output},
                    [output, input](Group& group) { gather_into(group, input, output); });
}

StarlingBackend::WorkPtr StarlingBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  check_single("reduce_scatter", outputs);
  check_list("reduce_scatter", inputs, outputs[0]);
  const ReduceCall call = reduce_call(options.reduceOp, outputs[0].scalar_type());
  return collective(c10d::OpType::REDUCE_SCATTER, "starling:reduce_scatter", options, outputs,
                    [output = outputs[0], inputs = inputs[0], call](Group& group) {
                      reduce_into(group, joined(inputs, output.scalar_type()), output, call);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                                const c10d::ReduceScatterOptions& options) {
  check_ratio("reduce_scatter", input, output);
  const ReduceCall call = reduce_call(options.reduceOp, output.scalar_type());
  return collective(c10d::OpType::_REDUCE_SCATTER_BASE, "starling:reduce_scatter", options, {output},
                    [output, input, call](Group& group) { reduce_into(group, input, output, call); });
}

StarlingBackend::WorkPtr StarlingBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  check_single("gather", inputs);
  check_rank("gather", options.rootRank);
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    check_list("gather", outputs, inputs[0]);
  } else {
    check_no_list("gather", outputs);
  }
  const Tensors received = is_root ? outputs[0] : Tensors{};
  const size_t count = travelling_count(inputs[0]);
  return collective(c10d::OpType::GATHER, "starling:gather", options, received,
                    [received, input = inputs[0], in_counts = only_root(size_, options.rootRank, count),
                     out_counts = Counts(size_, is_root ? count : 0)](Group& group) {
                      const at::Tensor out = room_for(element_count(input) * received.size(), input);
                      exchange(group, input, in_counts, out, out_counts);
                      distribute(out, received);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                        const c10d::GatherOptions& options) {
  check_tensor("gather", input);
  check_rank("gather", options.rootRank);
  const bool is_root = options.rootRank == rank_;
  if (is_root) check_ratio("gather", output, input);
  const size_t count = travelling_count(input);
  return collective(c10d::OpType::GATHER, "starling:gather", options, is_root ? Tensors{output} : Tensors{},
                    [output, input, is_root, in_counts = only_root(size_, options.rootRank, count),
                     out_counts = Counts(size_, is_root ? count : 0)](Group& group) {
                      const at::Tensor out = is_root ? writable(output) : room_for(0, input);
                      exchange(group, input, in_counts, out, out_counts);
                      if (is_root) store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& options) {
  check_single("scatter", outputs);
  check_rank("scatter", options.rootRank);
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    check_list("scatter", inputs, outputs[0]);
  } else {
    check_no_list("scatter", inputs);
  }
  const Tensors sent = is_root ? inputs[0] : Tensors{};
  const size_t count = travelling_count(outputs[0]);
  return collective(c10d::OpType::SCATTER, "starling:scatter", options, outputs,
                    [sent, output = outputs[0], in_counts = Counts(size_, is_root ? count : 0),
                     out_counts = only_root(size_, options.rootRank, count)](Group& group) {
                      const at::Tensor out = writable(output);
                      exchange(group, joined(sent, output.scalar_type()), in_counts, out, out_counts);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  check_same_type("all_to_all", {output, input});
  return collective(c10d::OpType::ALLTOALL_BASE, "starling:all_to_all", options, {output},
                    [output, input, out_counts = split_counts("all_to_all", output, output_splits, size_),
                     in_counts = split_counts("all_to_all", input, input_splits, size_)](Group& group) {
                      const at::Tensor out = writable(output);
                      exchange(group, input, in_counts, out, out_counts);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  if (outputs.size() != static_cast<size_t>(size_) || inputs.size() != outputs.size()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("all_to_all: give {} tensors in each list, one per rank", size_));
  }
  check_same_type("all_to_all", inputs);
  check_same_type("all_to_all", outputs);
  check_same_type("all_to_all", {inputs[0], outputs[0]});
  return collective(
      c10d::OpType::ALLTOALL, "starling:all_to_all", options, outputs,
      [outputs, inputs, out_counts = counts_of(outputs), in_counts = counts_of(inputs)](Group& group) {
        const at::Tensor in = joined(inputs, inputs[0].scalar_type());
        const at::Tensor out = joined(outputs, in.scalar_type());
        exchange(group, in, in_counts, out, out_counts);
        distribute(out, outputs);
      });
}

}  // namespace starling
