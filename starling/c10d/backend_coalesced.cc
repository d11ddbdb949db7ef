// The collectives of StarlingBackend on lists of tensors and on sparse tensors.
#include <fmt/format.h>

#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/backend.h"
#include "starling/c10d/backend_calls.h"
#include "starling/c10d/tensor_exchange.h"

namespace starling {
namespace {

void check_pairs(const char* operation, size_t outputs, size_t inputs) {
  if (outputs == inputs && inputs > 0) return;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: {} outputs and {} inputs; give as many outputs as inputs, at least one",
                          operation, outputs, inputs));
}

}  // namespace

StarlingBackend::WorkPtr StarlingBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_same_type("all_reduce_coalesced", tensors);
  const ReduceCall call = reduce_call(options.reduceOp, tensors[0].scalar_type());
  return collective(c10d::OpType::ALLREDUCE_COALESCED, "starling:all_reduce_coalesced", options, tensors,
                    [tensors, call](Group& group) {
                      const at::Tensor flat = joined(tensors, tensors[0].scalar_type());
                      reduce_in_place(group, flat, call);
                      distribute(flat, tensors);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::allreduce_sparse(Tensors& tensors,
                                                           const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1 || !tensors[0].is_sparse() || !tensors[0].is_cpu()) {
    throw Error(ErrorCode::kConfig, "all_reduce_sparse: give one sparse tensor on the CPU");
  }
  if (options.reduceOp.op_ != c10d::ReduceOp::SUM) {
    throw Error(ErrorCode::kConfig,
                "all_reduce_sparse: sparse tensors can only be summed; for other operations call to_dense()");
  }
  return collective(c10d::OpType::_ALLREDUCE_SPARSE, "starling:all_reduce_sparse", options, tensors,
                    [tensor = tensors[0]](Group& group) { tensor.copy_(sparse_sum(group, tensor)); });
}

StarlingBackend::WorkPtr StarlingBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& options) {
  constexpr const char* kName = "all_gather_coalesced";
  if (outputs.size() != static_cast<size_t>(size_)) {
    throw Error(ErrorCode::kConfig, fmt::format("{}: give {} lists of outputs, one per rank", kName, size_));
  }
  std::vector<Tensors> by_input(inputs.size());
  Tensors all;
  for (const Tensors& list : outputs) {
    check_pairs(kName, list.size(), inputs.size());
    for (size_t i = 0; i < list.size(); ++i) by_input[i].push_back(list[i]);
    all.insert(all.end(), list.begin(), list.end());
  }
  for (size_t i = 0; i < inputs.size(); ++i) check_list(kName, {by_input[i]}, inputs[i]);
  return collective(c10d::OpType::ALLGATHER_COALESCED, "starling:all_gather_coalesced", options, all,
                    [by_input, inputs](Group& group) {
                      for (size_t i = 0; i < inputs.size(); ++i) {
                        const at::Tensor flat =
                            room_for(element_count(inputs[i]) * by_input[i].size(), inputs[i]);
                        gather_all(group, inputs[i], flat);
                        distribute(flat, by_input[i]);
                      }
                    });
}

StarlingBackend::WorkPtr StarlingBackend::all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  check_pairs("all_gather_coalesced", outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) check_ratio("all_gather_coalesced", outputs[i], inputs[i]);
  return collective(c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED, "starling:all_gather_coalesced", options,
                    outputs, [outputs, inputs](Group& group) {
                      for (size_t i = 0; i < inputs.size(); ++i) gather_into(group, inputs[i], outputs[i]);
                    });
}

StarlingBackend::WorkPtr StarlingBackend::reduce_scatter_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  check_pairs("reduce_scatter_coalesced", outputs.size(), inputs.size());
  std::vector<ReduceCall> calls;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_ratio("reduce_scatter_coalesced", inputs[i], outputs[i]);
    calls.push_back(reduce_call(options.reduceOp, inputs[i].scalar_type()));
  }
  return collective(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "starling:reduce_scatter_coalesced",
                    options, outputs, [outputs, inputs, calls](Group& group) {
                      for (size_t i = 0; i < inputs.size(); ++i)
                        reduce_into(group, inputs[i], outputs[i], calls[i]);
                    });
}

}  // namespace starling
