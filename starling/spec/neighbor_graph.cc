#include "starling/spec/neighbor_graph.h"

namespace starling {
namespace {

// A cycle of so many ranks. Two ranks have one edge, and one rank has none.
bool is_bipartite_cycle(int64_t ranks) {
  return ranks == 1 || ranks % 2 == 0;
}

}  // namespace

int64_t torus_rows(int64_t ranks) {
  int64_t rows = 1;
  for (int64_t divisor = 2; divisor * divisor <= ranks; ++divisor) {
    if (ranks % divisor == 0) rows = divisor;
  }
  return rows;
}

bool is_bipartite(std::string_view graph, int64_t ranks) {
  if (graph == "ring") return is_bipartite_cycle(ranks);
  if (graph == "torus") {
    const int64_t rows = torus_rows(ranks);
    return is_bipartite_cycle(rows) && is_bipartite_cycle(ranks / rows);
  }
  // Ranks i, i + 1 and i + 2 are neighbors of each other.
  return graph == "exponential" && ranks <= 2;
}

}  // namespace starling
