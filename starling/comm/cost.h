// The α-β cost model of collectives between hosts (Hockney 1994): a message of n bytes takes α + n β; what a rank does in one
// step, it does at the same time, each way of its link by itself:
//
//   T = steps · α + further · o + bytes · β
//
// steps: messages on the longest chain of messages that wait for each other; further: messages beyond one that a rank on that
// chain sends or receives in the same step (o: what one of them costs); bytes: those on the chain's links.
// The functions are the formulas at the head of each file of collective/; algorithms_test.cc holds what really moves to them.
// Pure functions, which the planner and the choice of algorithms share.
#pragma once

#include <cstdint>

#include "starling/comm/algorithm.h"
#include "starling/comm/types.h"

namespace starling {

// One message between two hosts.
struct LinkCost {
  double alpha = 50e-6;    // seconds
  double overhead = 5e-6;  // o, seconds
  double beta = 8e-9;      // seconds a byte: 1 Gbit/s
};

struct CollectiveCost {
  double steps = 0;
  double further = 0;
  double bytes = 0;
  double total_bytes = 0;  // that all ranks together send
  bool at_most = false;    // an upper bound; total_bytes is exact nevertheless

  double seconds(const LinkCost& link) const {
    return steps * link.alpha + further * link.overhead + bytes * link.beta;
  }
};

// Of `kind` by `algorithm` among p ranks. bytes: N, of the whole tensor (all-reduce, broadcast), of all parts together
// (all-gather: the result; reduce-scatter: the input; all-to-all: what a rank has for all p, itself included, in equal blocks). Exact
// where N is a multiple of 64 p bytes; else parts are cut to within 64 bytes. Error (internal) where the algorithm does not
// carry out the kind.
CollectiveCost cost_of(CollectiveKind kind, Algorithm algorithm, int p, double bytes);

// The cheapest of the algorithms of `kind` on this link. rank_order: only those that add in rank order.
Algorithm cheapest(CollectiveKind kind, int p, double bytes, const LinkCost& link, bool rank_order);

}  // namespace starling
