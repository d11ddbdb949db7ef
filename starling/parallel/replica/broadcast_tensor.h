// Broadcasts a tensor of any type and memory order.
#pragma once

#include <ATen/core/Tensor.h>

#include "starling/comm/group.h"

namespace starling {

// Gives `tensor` the values of rank `root`, in place. Its shape and type are equal on all ranks. Types
// without arithmetic, such as bool, are sent as bytes. Collective.
void broadcast_tensor(Group& group, at::Tensor& tensor, int root);

}  // namespace starling
