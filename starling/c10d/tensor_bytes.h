// Checks tensors and brings them into the form that starling/comm needs: contiguous, one after another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace starling {

// Throws Error(kConfig) that names the operation unless the tensor is defined, dense and on the CPU.
void check_tensor(const char* operation, const at::Tensor& tensor);
// Throws Error(kConfig) unless the list has exactly one tensor that check_tensor() accepts.
void check_single(const char* operation, const std::vector<at::Tensor>& tensors);
// Throws Error(kConfig) unless there is at least one tensor, check_tensor() accepts each, and all have one
// type.
void check_same_type(const char* operation, const std::vector<at::Tensor>& tensors);

// Returns the number of elements.
size_t element_count(const at::Tensor& tensor);
// Returns a new contiguous tensor of the type of `like`, with room for `count` elements.
at::Tensor room_for(size_t count, const at::Tensor& like);
// Returns the elements of all tensors, one after another, in a new one-dimensional tensor. `type` is the type
// for an empty list.
at::Tensor joined(const std::vector<at::Tensor>& tensors, at::ScalarType type);
// Reverses joined(): copies the elements of `flat` into tensors of any strides.
void distribute(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

// Calls body(data) with the elements of `tensor` in row-major order. body() changes them in place.
template <typename Body>
void change_in_place(const at::Tensor& tensor, const Body& body) {
  const at::Tensor flat = tensor.contiguous();
  body(flat.mutable_data_ptr());
  if (!flat.is_same(tensor)) tensor.copy_(flat);
}

// Returns a contiguous tensor to write instead of `tensor`: `tensor` itself if it is contiguous. Call store()
// afterwards.
at::Tensor writable(const at::Tensor& tensor);
// Copies `written` to `tensor`, unless they are one tensor.
void store(const at::Tensor& written, const at::Tensor& tensor);

}  // namespace starling
