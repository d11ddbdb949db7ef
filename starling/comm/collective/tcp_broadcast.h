// Binomial broadcast: whoever has the tensor sends it on; the number of those who have it doubles in each step.
// Steps ⌈log2 p⌉, N bytes each: T = ⌈log2 p⌉ (α + N β).
#pragma once

#include <cstddef>

#include "starling/comm/remote_team.h"

namespace starling {

void tcp_broadcast(RemoteTeam& team, void* data, size_t bytes, int root);

}  // namespace starling
