// A short measurement of the link between two hosts: what the cost formulas need.
#pragma once

#include "starling/comm/cost.h"
#include "starling/comm/remote_team.h"

namespace starling {

// Positions 0 and 1 of the team ping each other: about 70 messages and 192 KiB, the fastest of a few turns each. The
// others do nothing. The result is good on position 0 alone; elsewhere it is the default.
LinkCost probe_link(RemoteTeam& team);

}  // namespace starling
