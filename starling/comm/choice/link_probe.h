// A short measurement of the link between two hosts, for the cost formulas (comm/choice/cost.h).
#pragma once

#include "starling/comm/choice/cost.h"
#include "starling/comm/network/remote_team.h"

namespace starling {

// Measures the link between positions 0 and 1 of the team. They exchange about 70 messages and 192 KiB, and
// the fastest of several turns counts. All other positions do nothing.
// Only position 0 gets the result. All other positions get the default.
LinkCost probe_link(RemoteTeam& team);

}  // namespace starling
