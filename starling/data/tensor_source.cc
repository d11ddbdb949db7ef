#include "starling/data/tensor_source.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

class TensorSource final : public Source {
 public:
  TensorSource(at::Tensor input, at::Tensor target) : input_(std::move(input)), target_(std::move(target)) {
    info_.name = "tensors";
    info_.input_shape = input_.sizes().slice(1).vec();
    if (target_.scalar_type() == at::kLong && target_.numel() > 0)
      info_.classes = target_.max().item<int64_t>() + 1;
  }
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return input_.size(0); }
  Batch read(const std::vector<int64_t>& indices, int64_t) const override {
    const at::Tensor index = at::tensor(indices, at::kLong);
    return {input_.index_select(0, index), target_.index_select(0, index)};
  }

 private:
  at::Tensor input_, target_;
  SourceInfo info_;
};

}  // namespace

std::shared_ptr<const Source> tensor_source(at::Tensor input, at::Tensor target) {
  if (input.dim() == 0 || target.dim() == 0 || input.size(0) != target.size(0)) {
    throw DataError(fmt::format(
        "a data set of tensors needs as many targets as inputs, one in each row: got {} inputs and {} "
        "targets",
        input.dim() == 0 ? 0 : input.size(0), target.dim() == 0 ? 0 : target.size(0)));
  }
  return std::make_shared<TensorSource>(std::move(input), std::move(target));
}

}  // namespace starling
