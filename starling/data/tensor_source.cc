#include "starling/data/tensor_source.h"

#include <ATen/ATen.h>

#include <utility>

namespace starling {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors rows_of(const Tensors& tensors, const at::Tensor& index) {
  Tensors rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.index_select(0, index));
  return rows;
}

class TensorSource final : public Source {
 public:
  TensorSource(Tensors inputs, Tensors targets) : inputs_(std::move(inputs)), targets_(std::move(targets)) {
    make_batch(inputs_, targets_);  // checks the rows
    info_.name = "tensors";
    info_.input_shape = inputs_[0].sizes().slice(1).vec();
    const bool classes =
        !targets_.empty() && targets_[0].scalar_type() == at::kLong && targets_[0].numel() > 0;
    if (classes) info_.classes = targets_[0].max().item<int64_t>() + 1;
  }
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return inputs_[0].size(0); }
  Batch read(const std::vector<int64_t>& indices, int64_t) const override {
    const at::Tensor index = at::tensor(indices, at::kLong);
    return make_batch(rows_of(inputs_, index), rows_of(targets_, index));
  }

 private:
  Tensors inputs_, targets_;
  SourceInfo info_;
};

}  // namespace

std::shared_ptr<const Source> tensor_source(at::Tensor input, at::Tensor target) {
  Tensors targets;
  if (target.defined()) targets.push_back(std::move(target));
  return std::make_shared<TensorSource>(Tensors{std::move(input)}, std::move(targets));
}

std::shared_ptr<const Source> tensor_source(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets) {
  return std::make_shared<TensorSource>(std::move(inputs), std::move(targets));
}

}  // namespace starling
