#include "starling/parallel/replica/coded_mean.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"
#include "starling/parallel/replica/codec_shapes.h"
#include "starling/parallel/replica/message_stats.h"

namespace starling {
namespace {

std::vector<TensorShape> shapes_of_replica(FlatReplica& replica) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& p : replica.replica().parameters) tensors.push_back(p.tensor);
  return codec_shapes(tensors, replica.layout().offset, replica.layout().total);
}

}  // namespace

CodedMean::CodedMean(const CodecSpec& spec, FlatReplica& replica, Group& group, double momentum)
    : group_(group), all_reduce_(group, spec, shapes_of_replica(replica), replica.layout().total, momentum) {
  STARLING_CHECK(replica.options().master == at::kFloat, "codecs take fp32 values");
}

void CodedMean::apply(at::Tensor& flat) {
  ++times_;
  all_reduce_.apply(codec_values(flat));
}

at::Tensor CodedMean::state() const {
  const std::vector<float> values = all_reduce_.state();
  return values.empty() ? at::Tensor() : at::tensor(values, at::kFloat);
}

void CodedMean::load_state(const at::Tensor& state) {
  all_reduce_.load_state(codec_values(state.to(at::kFloat).contiguous()));
}

void CodedMean::tell(StrategyStats& stats) const {
  const double times = times_ > 0 ? times_ : 1;
  tell_messages(group_, static_cast<double>(all_reduce_.sent()) / times, all_reduce_.plain() / times, stats);
  stats["by_reduce_scatter"] = static_cast<double>(all_reduce_.scattered()) / times;
  if (const auto norm = all_reduce_.residual_norm()) stats["residual_norm"] = *norm;
}

}  // namespace starling
