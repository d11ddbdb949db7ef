#include "starling/c10d/tensor_bytes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"

namespace starling {

DataType check_tensor(const char* operation, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kConfig, fmt::format("{}: {}", operation, why));
  };
  if (!tensor.defined()) refuse("an undefined tensor");
  if (tensor.is_cuda()) {
    refuse(fmt::format(
        "a tensor on {}, and the backend starling communicates CPU tensors; NCCL is the backend for CUDA",
        tensor.device().str()));
  }
  if (!tensor.is_cpu()) {
    refuse(fmt::format("a tensor on {}, and the backend starling communicates CPU tensors",
                       tensor.device().str()));
  }
  if (tensor.layout() != at::kStrided) refuse("a sparse tensor; make it dense by to_dense()");
  return data_type_of(tensor.scalar_type());
}

DataType check_single(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != 1) {
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: {} tensors; give one a call", operation, tensors.size()));
  }
  return check_tensor(operation, tensors[0]);
}

DataType check_same_type(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty())
    throw Error(ErrorCode::kConfig, fmt::format("{}: an empty list of tensors", operation));
  const DataType first = check_tensor(operation, tensors[0]);
  for (const at::Tensor& tensor : tensors) {
    const DataType type = check_tensor(operation, tensor);
    if (type != first) {
      throw Error(ErrorCode::kConfig,
                  fmt::format("{}: tensors of types {} and {} in one call; give one type a call", operation,
                              name_of(first), name_of(type)));
    }
  }
  return first;
}

size_t element_count(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel());
}

at::Tensor joined(const std::vector<at::Tensor>& tensors, at::ScalarType type) {
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return flat.empty() ? at::empty({0}, type) : at::cat(flat);
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
