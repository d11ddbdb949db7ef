// The strategy statistics of what ranks send through a codec.
#pragma once

#include "starling/comm/group.h"
#include "starling/parallel/strategy.h"

namespace starling {

// Adds these statistics to `stats`. Collective. message_bytes is the mean over the ranks of `sent`, the bytes
// that this rank sent per exchange. compression is `plain` divided by message_bytes. It is missing if nothing
// was sent. plain: the bytes of an exchange without a codec. message_balance is the largest `sent` of any
// rank divided by the mean of all ranks.
void tell_messages(Group& group, double sent, double plain, StrategyStats& stats);

}  // namespace starling
