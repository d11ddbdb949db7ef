// Work of one rank for which the other ranks wait, however long it takes.
#pragma once

#include <functional>

#include "starling/comm/group.h"

namespace starling {

// Carries out each rank's `work`, and returns when the work of all ranks of the group is done. The work may
// wait for a disk and must share no collective. The ranks answer each other meanwhile, so that a slow disk
// does not look like a lost rank. Collective. Errors: what this rank's work throws; those of the group.
void wait_together(Group& group, const std::function<void()>& work);

}  // namespace starling
