// Makes the c10d::ProcessGroup of a Group, or of the ranks that hold a c10d store, for libtorch code that
// needs one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <vector>

#include "starling/c10d/c10d_rendezvous.h"
#include "starling/c10d/device_backends.h"
#include "starling/comm/group.h"

namespace starling {

// Makes a process group whose default backend, and backend for CPU tensors, is a StarlingBackend of this
// group. Other code must not use the group while operations of the process group are pending, because all
// ranks must see one order of calls.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(std::shared_ptr<Group> group);

// Makes the process group of the ranks that hold `store`. Collective. CPU tensors have a StarlingBackend, and
// tensors of other devices have the backends of `devices`. The devices are equal on all ranks. Errors: those
// of rendezvous_group() and of the functions that make the backends.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const RendezvousOptions& rendezvous,
    const std::vector<DeviceBackend>& devices = device_backends());

}  // namespace starling
