#include "starling/parallel/coded_mean.h"

#include <ATen/ATen.h>

#include <cmath>

#include "starling/base/check.h"
#include "starling/codec/flat_state.h"

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

CodedMean::CodedMean(const CodecSpec& spec, FlatReplica& replica)
    : codec_(make_codec(spec, shapes_of(replica))), range_bytes_(static_cast<double>(replica.bytes())) {
  STARLING_CHECK(replica.options().master == at::kFloat, "codecs take fp32 values");
  if (spec.error_feedback) feedback_.emplace(replica.layout().total);
}

void CodedMean::apply(Group& group, at::Tensor& flat) {
  ++times_;
  message_bytes_ += static_cast<double>(
      compressed_all_reduce(group, *codec_, feedback_ ? &*feedback_ : nullptr, values_of(flat), &buffers_));
}

at::Tensor CodedMean::state() const {
  const std::vector<float> values = flat_state(*codec_, feedback_ ? &*feedback_ : nullptr);
  return values.empty() ? at::Tensor() : at::tensor(values, at::kFloat);
}

void CodedMean::load_state(const at::Tensor& state) {
  load_flat_state(*codec_, feedback_ ? &*feedback_ : nullptr, values_of(state.to(at::kFloat).contiguous()));
}

void CodedMean::tell(Group& group, Fingerprint& print) const {
  const double own = times_ > 0 ? message_bytes_ / times_ : 0;
  double sum = own, largest = own;
  if (group.size() > 1) {
    group.all_reduce(&sum, 1, DataType::kFp64, ReduceOp::kSum);
    group.all_reduce(&largest, 1, DataType::kFp64, ReduceOp::kMax);
  }
  const double mean = sum / group.size();
  print["message_bytes"] = mean;
  print["compression"] = mean > 0 ? range_bytes_ / mean : 0;
  print["message_balance"] = mean > 0 ? largest / mean : 1;
  if (!feedback_) return;
  double squares = 0;
  for (const float r : feedback_->residual()) squares += static_cast<double>(r) * r;
  print["residual_norm"] = std::sqrt(squares);
}

}  // namespace starling
