// Dissemination barrier: in round k each rank tells rank + 2^k and hears from rank - 2^k.
// Steps ⌈log2 p⌉, a head of bytes each: T = ⌈log2 p⌉ α.
#pragma once

#include "starling/comm/remote_team.h"

namespace starling {

void tcp_barrier(RemoteTeam& team);

}  // namespace starling
