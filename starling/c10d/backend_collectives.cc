// The collectives of StarlingBackend: each checks its tensors and names what the engine has to do.
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_calls.h"
#include "starling/c10d/data_type.h"
#include "starling/c10d/tensor_bytes.h"

namespace starling {
namespace {

using Tensors = StarlingBackend::Tensors;
using Counts = std::vector<size_t>;

// One tensor of the type of `like`, with room for `count` elements.
at::Tensor room_for(size_t count, const at::Tensor& like) {
  return at::empty({static_cast<int64_t>(count)}, like.scalar_type());
}

void check_ratio(const char* operation, const at::Tensor& large, const at::Tensor& small, int size) {
  if (large.scalar_type() != small.scalar_type() || large.numel() != small.numel() * size) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format(
            "{}: tensors of {} {} and {} {} elements in a group of {}; one type, and {} times the elements",
            operation, large.numel(), c10::toString(large.scalar_type()), small.numel(),
            c10::toString(small.scalar_type()), size, size));
  }
}

// Elements a rank, of splits along dim 0.
Counts split_counts(const char* operation, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                    int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  int64_t row = 1;
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
                fmt::format("{}: splits [{}] of {} rows in a group of {}; give one a rank, with the "
                            "rows as their sum",
                            operation, fmt::join(splits, ", "), rows, size));
  }
  Counts counts;
  for (const int64_t n : splits) counts.push_back(static_cast<size_t>(n * row));
  return counts;
}

Counts counts_of(const Tensors& tensors) {
  Counts counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(element_count(tensor));
  return counts;
}

}  // namespace

void StarlingBackend::check_list(const char* operation, const std::vector<Tensors>& lists,
                                 const at::Tensor& each) const {
  if (lists.size() != 1 || lists[0].size() != static_cast<size_t>(size_)) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: give one list of {} tensors, one a rank", operation, size_));
  }
  check_same_type(operation, lists[0]);
  for (const at::Tensor& tensor : lists[0]) check_ratio(operation, tensor, each, 1);
}

void StarlingBackend::check_no_list(const char* operation, const std::vector<Tensors>& lists) const {
  if (lists.empty() || (lists.size() == 1 && lists[0].empty())) return;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: rank {} is not the root and gives a list; give none", operation, rank_));
}

StarlingBackend::WorkPtr StarlingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const DataType type = check_single("broadcast", tensors);
  check_rank("broadcast", options.rootRank);
  const int root = static_cast<int>(options.rootRank);
  return collective(c10d::OpType::BROADCAST, "starling:broadcast", options, tensors,
                    [tensor = tensors[0], type, root](Group& group) {
                      change_in_place(tensor,
                                      [&](void* data, size_t n) { group.broadcast(data, n, type, root); });
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const DataType type = check_single("all_reduce", tensors);
  const ReduceOp op = reduce_op_of(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE, "starling:all_reduce", options, tensors,
                    [tensor = tensors[0], type, op](Group& group) {
                      change_in_place(tensor,
                                      [&](void* data, size_t n) { group.all_reduce(data, n, type, op); });
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const DataType type = check_same_type("all_reduce_coalesced", tensors);
  const ReduceOp op = reduce_op_of(options.reduceOp);
  return collective(c10d::OpType::ALLREDUCE_COALESCED, "starling:all_reduce_coalesced", options, tensors,
                    [tensors, type, op](Group& group) {
                      const at::Tensor flat = joined(tensors, tensors[0].scalar_type());
                      group.all_reduce(flat.mutable_data_ptr(), element_count(flat), type, op);
                      distribute(flat, tensors);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const DataType type = check_single("reduce", tensors);
  check_rank("reduce", options.rootRank);
  const ReduceOp op = reduce_op_of(options.reduceOp);
  const bool is_root = options.rootRank == rank_;
  return collective(c10d::OpType::REDUCE, "starling:reduce", options, tensors,
                    [tensor = tensors[0], type, op, is_root](Group& group) {
                      const at::Tensor target = is_root ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
                      change_in_place(target,
                                      [&](void* data, size_t n) { group.all_reduce(data, n, type, op); });
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  const DataType type = check_single("all_gather", inputs);
  check_list("all_gather", outputs, inputs[0]);
  return collective(c10d::OpType::ALLGATHER, "starling:all_gather", options, outputs[0],
                    [outputs = outputs[0], input = inputs[0], type](Group& group) {
                      const at::Tensor in = input.contiguous();
                      const at::Tensor all = room_for(element_count(in) * outputs.size(), in);
                      group.all_gather(in.const_data_ptr(), all.mutable_data_ptr(), element_count(in), type);
                      distribute(all, outputs);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::all_gather_single(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& options) {
  const DataType type = check_tensor("all_gather", input);
  check_tensor("all_gather", output);
  check_ratio("all_gather", output, input, size_);
  return collective(c10d::OpType::_ALLGATHER_BASE, "starling:all_gather", options, {output},
                    [output, input, type](Group& group) {
                      const at::Tensor in = input.contiguous();
                      const at::Tensor out = writable(output);
                      group.all_gather(in.const_data_ptr(), out.mutable_data_ptr(), element_count(in), type);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  const DataType type = check_single("reduce_scatter", outputs);
  check_list("reduce_scatter", inputs, outputs[0]);
  const ReduceOp op = reduce_op_of(options.reduceOp);
  return collective(c10d::OpType::REDUCE_SCATTER, "starling:reduce_scatter", options, outputs,
                    [output = outputs[0], inputs = inputs[0], type, op](Group& group) {
                      const at::Tensor in = joined(inputs, output.scalar_type());
                      const at::Tensor out = writable(output);
                      group.reduce_scatter(in.const_data_ptr(), out.mutable_data_ptr(), element_count(out),
                                           type, op);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                                const c10d::ReduceScatterOptions& options) {
  const DataType type = check_tensor("reduce_scatter", input);
  check_tensor("reduce_scatter", output);
  check_ratio("reduce_scatter", input, output, size_);
  const ReduceOp op = reduce_op_of(options.reduceOp);
  return collective(c10d::OpType::_REDUCE_SCATTER_BASE, "starling:reduce_scatter", options, {output},
                    [output, input, type, op](Group& group) {
                      const at::Tensor in = input.contiguous();
                      const at::Tensor out = writable(output);
                      group.reduce_scatter(in.const_data_ptr(), out.mutable_data_ptr(), element_count(out),
                                           type, op);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  const DataType type = check_single("gather", inputs);
  check_rank("gather", options.rootRank);
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    check_list("gather", outputs, inputs[0]);
  } else {
    check_no_list("gather", outputs);
  }
  Tensors received = is_root ? outputs[0] : Tensors{};
  Counts in_counts(size_, 0);
  in_counts[options.rootRank] = element_count(inputs[0]);
  const Counts out_counts(size_, is_root ? element_count(inputs[0]) : 0);
  return collective(c10d::OpType::GATHER, "starling:gather", options, received,
                    [received, input = inputs[0], in_counts, out_counts, type](Group& group) {
                      const at::Tensor in = input.contiguous();
                      const at::Tensor out = room_for(element_count(in) * received.size(), in);
                      group.all_to_all(in.const_data_ptr(), in_counts, out.mutable_data_ptr(), out_counts,
                                       type);
                      distribute(out, received);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& options) {
  const DataType type = check_single("scatter", outputs);
  check_rank("scatter", options.rootRank);
  const bool is_root = options.rootRank == rank_;
  if (is_root) {
    check_list("scatter", inputs, outputs[0]);
  } else {
    check_no_list("scatter", inputs);
  }
  Tensors sent = is_root ? inputs[0] : Tensors{};
  const Counts in_counts(size_, is_root ? element_count(outputs[0]) : 0);
  Counts out_counts(size_, 0);
  out_counts[options.rootRank] = element_count(outputs[0]);
  return collective(c10d::OpType::SCATTER, "starling:scatter", options, outputs,
                    [sent, output = outputs[0], in_counts, out_counts, type](Group& group) {
                      const at::Tensor in = joined(sent, output.scalar_type());
                      const at::Tensor out = writable(output);
                      group.all_to_all(in.const_data_ptr(), in_counts, out.mutable_data_ptr(), out_counts,
                                       type);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                            std::vector<int64_t>& output_splits,
                                                            std::vector<int64_t>& input_splits,
                                                            const c10d::AllToAllOptions& options) {
  const DataType type = check_same_type("all_to_all", {output, input});
  const Counts out_counts = split_counts("all_to_all", output, output_splits, size_);
  const Counts in_counts = split_counts("all_to_all", input, input_splits, size_);
  return collective(c10d::OpType::ALLTOALL_BASE, "starling:all_to_all", options, {output},
                    [output, input, out_counts, in_counts, type](Group& group) {
                      const at::Tensor in = input.contiguous();
                      const at::Tensor out = writable(output);
                      group.all_to_all(in.const_data_ptr(), in_counts, out.mutable_data_ptr(), out_counts,
                                       type);
                      store(out, output);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  if (outputs.size() != static_cast<size_t>(size_) || inputs.size() != outputs.size()) {
    throw Error(ErrorCode::kConfig,
                fmt::format("all_to_all: give {} tensors in each list, one a rank", size_));
  }
  const DataType type = check_same_type("all_to_all", inputs);
  if (check_same_type("all_to_all", outputs) != type) {
    throw Error(ErrorCode::kConfig, "all_to_all: inputs and outputs of different types; give one type");
  }
  const Counts out_counts = counts_of(outputs), in_counts = counts_of(inputs);
  return collective(c10d::OpType::ALLTOALL, "starling:all_to_all", options, outputs,
                    [outputs, inputs, out_counts, in_counts, type](Group& group) {
                      const at::Tensor in = joined(inputs, inputs[0].scalar_type());
                      const size_t room = std::accumulate(out_counts.begin(), out_counts.end(), size_t{0});
                      const at::Tensor out = room_for(room, in);
                      group.all_to_all(in.const_data_ptr(), in_counts, out.mutable_data_ptr(), out_counts,
                                       type);
                      distribute(out, outputs);
                    });
}

}  // namespace starling
