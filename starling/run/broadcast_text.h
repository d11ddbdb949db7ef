// Text from one rank to all.
#pragma once

#include <string>

#include "starling/comm/group.h"

namespace starling {

// Collective: rank 0's text, on every rank. Errors: those of Group::broadcast.
std::string broadcast_text(Group& group, std::string text);

}  // namespace starling
