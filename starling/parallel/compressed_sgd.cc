#include "starling/parallel/compressed_sgd.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "starling/base/check.h"

namespace starling {
namespace {

// The tensors of the flat range as matrices: the first dimension against the rest.
std::vector<TensorShape> shapes_of(const FlatReplica& replica, const std::vector<NamedTensor>& parameters) {
  std::vector<TensorShape> shapes;
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

}  // namespace

CompressedSgd::CompressedSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                             const CodecSpec& codec, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock) {
  STARLING_CHECK(options.master == at::kFloat, "codecs take fp32 gradients");
  codec_ = make_codec(codec, shapes_of(replica_, replica_.replica().parameters));
  if (!codec.error_feedback) return;
  feedback_.emplace(replica_.layout().total);
  residual_ = at::zeros_like(replica_.parameters());
}

std::map<std::string, at::Tensor*> CompressedSgd::own_ranges() {
  if (!feedback_) return {};
  if (steps_ > 0) {
    const auto residual = feedback_->residual();
    std::copy(residual.begin(), residual.end(), residual_.data_ptr<float>());
  }
  return {{"residual", &residual_}};
}

bool CompressedSgd::advance(StepReport& report) {
  // What load_state() has put into the checkpoint's view comes into force before the first exchange.
  if (feedback_ && steps_ == 0) {
    const float* r = residual_.data_ptr<float>();
    feedback_->load_state({{"residual", std::vector<float>(r, r + residual_.numel())}});
  }
  ++steps_;
  exchanging(report, [&] {
    at::Tensor& g = replica_.gradients();
    const std::span<float> data(g.data_ptr<float>(), static_cast<size_t>(g.numel()));
    message_bytes_ += static_cast<double>(
        compressed_all_reduce(group_, *codec_, feedback_ ? &*feedback_ : nullptr, data, &buffers_));
  });
  replica_.update(step_);
  return true;
}

Fingerprint CompressedSgd::fingerprint() {
  const double own = steps_ > 0 ? message_bytes_ / steps_ : 0;
  double sum = own, largest = own;
  if (group_.size() > 1) {
    group_.all_reduce(&sum, 1, DataType::kFp64, ReduceOp::kSum);
    group_.all_reduce(&largest, 1, DataType::kFp64, ReduceOp::kMax);
  }
  const double mean = sum / group_.size();
  Fingerprint print = {
      {"parameter_bytes", static_cast<double>(replica_.parameters().nbytes())},
      {"message_bytes", mean},
      {"compression", mean > 0 ? static_cast<double>(replica_.parameters().nbytes()) / mean : 0},
      {"message_balance", mean > 0 ? largest / mean : 1}};
  if (feedback_) {
    double squares = 0;
    for (const float r : feedback_->residual()) squares += static_cast<double>(r) * r;
    print["residual_norm"] = std::sqrt(squares);
  }
  return print;
}

}  // namespace starling
