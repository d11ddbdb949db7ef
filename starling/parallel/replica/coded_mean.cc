#include "starling/parallel/replica/coded_mean.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"

namespace starling {
namespace {

std::vector<TensorShape> shapes_of(FlatReplica& replica) {
  std::vector<TensorShape> shapes;
  const std::vector<NamedTensor>& parameters = replica.replica().parameters;
  const FlatLayout& layout = replica.layout();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& p = parameters[i].tensor;
    const size_t size = replica.sizes()[i];
    const size_t next = i + 1 < parameters.size() ? layout.offset[i + 1] : layout.total;
    TensorShape shape;
    shape.rows = p.dim() > 1 ? static_cast<size_t>(p.size(0)) : 1;
    shape.cols = shape.rows == 0 ? 0 : size / shape.rows;
    shape.padding = next - layout.offset[i] - size;
    shapes.push_back(shape);
  }
  return shapes;
}

std::span<float> values_of(const at::Tensor& flat) {
  return {flat.data_ptr<float>(), static_cast<size_t>(flat.numel())};
}

}  // namespace

CodedMean::CodedMean(const CodecSpec& spec, FlatReplica& replica, Group& group, double momentum)
    : group_(group), all_reduce_(group, spec, shapes_of(replica), replica.layout().total, momentum) {
  STARLING_CHECK(replica.options().master == at::kFloat, "codecs take fp32 values");
}

void CodedMean::apply(at::Tensor& flat) {
  ++times_;
  all_reduce_.apply(values_of(flat));
}

at::Tensor CodedMean::state() const {
  const std::vector<float> values = all_reduce_.state();
  return values.empty() ? at::Tensor() : at::tensor(values, at::kFloat);
}

void CodedMean::load_state(const at::Tensor& state) {
  all_reduce_.load_state(values_of(state.to(at::kFloat).contiguous()));
}

void CodedMean::tell(StrategyStats& stats) const {
  const double times = times_ > 0 ? times_ : 1;
  const double own = static_cast<double>(all_reduce_.sent()) / times;
  double sum = own, largest = own;
  if (group_.size() > 1) {
    all_reduce(group_, &sum, 1, DataType::kFp64, ReduceOp::kSum);
    all_reduce(group_, &largest, 1, DataType::kFp64, ReduceOp::kMax);
  }
  const double mean = sum / group_.size();
  stats["message_bytes"] = mean;
  if (mean > 0) stats["compression"] = all_reduce_.plain() / times / mean;
  stats["message_balance"] = mean > 0 ? largest / mean : 1;
  stats["by_reduce_scatter"] = static_cast<double>(all_reduce_.scattered()) / times;
  if (const auto norm = all_reduce_.residual_norm()) stats["residual_norm"] = *norm;
}

}  // namespace starling
