// Tensors as the engine wants them: checked, contiguous, side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace starling {

// Defined, dense and on the CPU; Error(kConfig) naming the operation otherwise.
void check_tensor(const char* operation, const at::Tensor& tensor);
// As check_tensor for a list of exactly one.
void check_single(const char* operation, const std::vector<at::Tensor>& tensors);
// As check_tensor for each; all of one type, at least one.
void check_same_type(const char* operation, const std::vector<at::Tensor>& tensors);

size_t element_count(const at::Tensor& tensor);
// One contiguous tensor of the type of `like`, with room for `count` elements.
at::Tensor room_for(size_t count, const at::Tensor& like);
// The elements of all tensors, one after another, in a new one-dimensional tensor. type: of an empty list.
at::Tensor joined(const std::vector<at::Tensor>& tensors, at::ScalarType type);
// The reverse, into tensors of any strides.
void distribute(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

// body(data) on the elements of `tensor` in row-major order, which it changes in place.
template <typename Body>
void change_in_place(const at::Tensor& tensor, const Body& body) {
  const at::Tensor flat = tensor.contiguous();
  body(flat.mutable_data_ptr());
  if (!flat.is_same(tensor)) tensor.copy_(flat);
}

// A contiguous tensor to write in place of `tensor`: itself where it is contiguous. Then store(written, tensor).
at::Tensor writable(const at::Tensor& tensor);
void store(const at::Tensor& written, const at::Tensor& tensor);

}  // namespace starling
