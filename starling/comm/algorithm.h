// The algorithms of collectives between ranks that do not share memory, by name. Each algorithm is a file of
// comm/collective/ that begins with its steps, bytes and cost.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "starling/comm/types.h"

namespace starling {

// Algorithm names an algorithm.
enum class Algorithm : uint8_t {
  kAuto,  // chosen by tuning or by the cost formulas (choice/choice.h)
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

// Returns the algorithm's name in the configuration: "ring", "halving-doubling" …
const char* name_of(Algorithm algorithm);
// Returns the algorithm with this name. "hierarchical" gives kAuto, because ranks that share memory always
// use shared memory first.
// Errors: ConfigError for other words.
Algorithm algorithm_named(const std::string& name);

// Returns the algorithms that carry out `kind`, the default first.
std::span<const Algorithm> algorithms_of(CollectiveKind kind);
// Returns whether the algorithm carries out `kind`.
bool carries_out(Algorithm algorithm, CollectiveKind kind);

// Returns whether the algorithm adds the values of an element in rank order, with 16-bit floats in fp32 and
// rounded once. All algorithms for which this is true give the same bits.
bool keeps_rank_order(Algorithm algorithm);

}  // namespace starling
