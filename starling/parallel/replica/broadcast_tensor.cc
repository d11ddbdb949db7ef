#include "starling/parallel/replica/broadcast_tensor.h"

#include <ATen/ATen.h>

#include "starling/c10d/data_type.h"

namespace starling {

void broadcast_tensor(Group& group, at::Tensor& tensor, int root) {
  if (group.size() == 1 || tensor.numel() == 0) return;
  at::NoGradGuard no_grad;
  at::Tensor value = tensor.detach().to(at::kCPU).contiguous();
  const Travel travel = travel_of(value.scalar_type());
  broadcast(group, value.data_ptr(), static_cast<size_t>(value.numel()) * travel.per_element, travel.type,
            root);
  if (value.data_ptr() != tensor.data_ptr()) tensor.copy_(value);
}

}  // namespace starling
