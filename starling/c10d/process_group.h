// The c10d::ProcessGroup of a Group, or of the ranks that hold a store of c10d, for code of libtorch that asks for one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <vector>

#include "starling/c10d/device_backends.h"
#include "starling/c10d/meeting.h"
#include "starling/comm/group.h"

namespace starling {

// A process group whose backend for CPU tensors, and default backend, is a StarlingBackend of this group. What holds the
// group beside it must not use it while operations of the process group are pending: all ranks see one order of calls.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(std::shared_ptr<Group> group);

// Collective over the ranks that hold `store`: the same, and for tensors of each other device the backend of `devices`, which must
// be the same on all ranks. Errors: those of meet() and of what makes the backends.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const MeetingOptions& meeting,
    const std::vector<DeviceBackend>& devices = device_backends());

}  // namespace starling
