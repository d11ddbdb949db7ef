#include "starling/c10d/tensor_bytes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

void check_tensor(const char* operation, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kConfig, fmt::format("{}: {}", operation, why));
  };
  if (!tensor.defined()) refuse("an undefined tensor");
  if (tensor.is_cuda()) {
    refuse(fmt::format(
        "a tensor on {}, and the backend starling communicates CPU tensors; NCCL is the backend for CUDA: "
        "docs/explanation/communication.md, GPUs, or give tensor.cpu()",
        tensor.device().str()));
  }
  if (!tensor.is_cpu()) {
    refuse(fmt::format("a tensor on {}, and the backend starling communicates CPU tensors",
                       tensor.device().str()));
  }
  if (tensor.layout() != at::kStrided) refuse("a sparse tensor; make it dense by to_dense()");
}

void check_single(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: {} tensors; give one per call", operation, tensors.size()));
  }
  check_tensor(operation, tensors[0]);
}

void check_same_type(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty())
    throw Error(ErrorCode::kConfig, fmt::format("{}: an empty list of tensors", operation));
  for (const at::Tensor& tensor : tensors) {
    check_tensor(operation, tensor);
    if (tensor.scalar_type() == tensors[0].scalar_type()) continue;
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: tensors of types {} and {} in one call; give one type per call", operation,
                            c10::toString(tensors[0].scalar_type()), c10::toString(tensor.scalar_type())));
  }
}

size_t element_count(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel());
}

at::Tensor room_for(size_t count, const at::Tensor& like) {
  return at::empty({static_cast<int64_t>(count)}, like.scalar_type());
}

// Does not use at::cat, which lacks some types.
at::Tensor joined(const std::vector<at::Tensor>& tensors, at::ScalarType type) {
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) count += tensor.numel();
  const at::Tensor flat = at::empty({count}, tensors.empty() ? type : tensors[0].scalar_type());
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, at, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    at += tensor.numel();
  }
  return flat;
}

void distribute(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

at::Tensor writable(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

void store(const at::Tensor& written, const at::Tensor& tensor) {
  if (!written.is_same(tensor)) tensor.copy_(written);
}

}  // namespace starling
