// The c10d::ProcessGroup of a Group, for code of libtorch that asks for one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

#include "starling/comm/group.h"

namespace starling {

// A process group whose backend for CPU tensors, and default backend, is a StarlingBackend of this group. What holds the
// group beside it must not use it while operations of the process group are pending: all ranks see one order of calls.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(std::shared_ptr<Group> group);

}  // namespace starling
