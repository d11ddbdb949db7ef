// The algorithms of collectives between ranks that do not share memory, by name. Each is a file of collective/, which begins
// with its steps, bytes and cost.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "starling/comm/types.h"

namespace starling {

enum class Algorithm : uint8_t {
  kAuto,  // by measurement or by the cost formulas (choice.h)
  kRing,
  kDirect,
  kHalvingDoubling,
  kBinomialTree,
  kDoubleTree,
  kBruck,
  kPairwise,
  kStar,
  kDissemination
};

// "ring", "halving-doubling" …
const char* name_of(Algorithm algorithm);
// "hierarchical" is kAuto: ranks that share memory always use it, whatever goes on between hosts. ConfigError for other words.
Algorithm algorithm_named(const std::string& name);

// Those that carry out `kind`, the default first.
std::span<const Algorithm> algorithms_of(CollectiveKind kind);
bool carries_out(Algorithm algorithm, CollectiveKind kind);

// Adds the values of an element in rank order, 16-bit floats in fp32 and rounded once: all of these give equal bits.
bool keeps_rank_order(Algorithm algorithm);

}  // namespace starling
