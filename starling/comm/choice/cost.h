// The α-β cost model of collectives between hosts (Hockney 1994). A message of n bytes takes α + n β.
// Everything that a rank does in one step happens at the same time, in each direction of its link
// independently:
//
//   T = steps · α + further · o + bytes · β
//
// steps: the messages on the longest chain of messages that wait for each other
// further: messages beyond the first that a rank of this chain sends or receives in one step; each costs o
// bytes: the bytes on the links of this chain
//
// The functions compute the formulas at the top of each file of comm/collective/. The test
// collective/algorithms_test.cc compares them with the messages that move. The functions are pure. The
// planner and the choice of algorithms use them.
#pragma once

#include <cstdint>

#include "starling/comm/algorithm.h"
#include "starling/comm/types.h"

namespace starling {

// LinkCost is the cost of one message between two hosts.
struct LinkCost {
  double alpha = 50e-6;    // seconds
  double overhead = 5e-6;  // o in seconds
  double beta = 8e-9;      // seconds per byte; the default is 1 Gbit/s
};

// CollectiveCost is the cost of one collective.
struct CollectiveCost {
  double steps = 0;
  double further = 0;
  double bytes = 0;
  double total_bytes = 0;  // the bytes that all ranks together send
  bool at_most = false;    // whether all but total_bytes are upper bounds

  // Returns the time T on this link.
  double seconds(const LinkCost& link) const {
    return steps * link.alpha + further * link.overhead + bytes * link.beta;
  }
};

// Returns the cost of `kind` by `algorithm` among p ranks. `bytes` is N:
//   all-reduce, broadcast: the size of the tensor
//   all-gather: the size of the result;  reduce-scatter: the size of the input
//   all-to-all: what a rank has for all p ranks, itself included, in equal blocks
// The result is exact if N is a multiple of 64 p bytes. Otherwise the parts differ by up to 64 bytes.
// The algorithm must carry out the kind (CHECK).
CollectiveCost cost_of(CollectiveKind kind, Algorithm algorithm, int p, double bytes);

// Returns the cheapest algorithm of `kind` on this link. `rank_order` restricts the choice to algorithms that
// add in rank order.
Algorithm cheapest(CollectiveKind kind, int p, double bytes, const LinkCost& link, bool rank_order);

}  // namespace starling
