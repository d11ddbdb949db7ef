// Facts about the graphs of exchange.graph that are known before ranks start. parallel/gossip.h has the
// neighbors of a rank.
#pragma once

#include <cstdint>
#include <string_view>

namespace starling {

// Returns the number of rows of the graph "torus": the largest divisor of `ranks` that is at most its square
// root.
int64_t torus_rows(int64_t ranks);

// Returns true if the ranks of the graph can be divided into two sides, so that neighbors are always on
// different sides. graph: "ring", "torus" or "exponential".
bool is_bipartite(std::string_view graph, int64_t ranks);

}  // namespace starling
