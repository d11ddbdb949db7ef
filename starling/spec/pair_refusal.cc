#include "starling/spec/pair_refusal.h"

#include <fmt/format.h>

#include "starling/spec/mesh.h"
#include "starling/spec/neighbor_graph.h"
#include "starling/spec/strategy_table.h"

namespace starling {

std::optional<Refusal> pair_refusal(const RunSpec& spec) {
  const ExchangeTraits& traits = exchange_traits(spec);
  if (!traits.pairs && !traits.center) return std::nullopt;
  const std::string& name = spec.exchange.name;
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  const char* axis = mesh.stage > 1 ? "stage" : "tensor";
  if (traits.center && mesh.replica != mesh.ranks())
    return Refusal{{"exchange.name", "train.mesh"},
                   fmt::format("the ranks of a replica compute together, but with {} each rank meets the "
                               "center at its own time: use --exchange easgd, which is synchronous, or "
                               "leave out the {} axis",
                               name, axis)};
  if (mesh.replica != mesh.ranks())
    return Refusal{{"exchange.name", "train.mesh"},
                   fmt::format("the ranks of a replica compute together, but with {} each rank averages "
                               "with other ranks at its own time: use another --exchange, or leave out "
                               "the {} axis",
                               name, axis)};
  if (!traits.pairs) return std::nullopt;
  const std::string& graph = spec.exchange.graph;
  if (is_bipartite(graph, mesh.replica)) return std::nullopt;
  const std::string remedy =
      mesh.replica % 2 == 0
          ? "use --graph ring"
          : fmt::format("use {}an even number of ranks, such as -n {}, or another --exchange",
                        graph == "ring" ? "" : "--graph ring and ", mesh.replica + 1);
  return Refusal{
      {"exchange.graph", "exchange.name", "train.ranks"},
      fmt::format("{} divides the ranks into active and passive ones, so that neighbors are never of one "
                  "kind, but the graph {} of {} ranks cannot be divided so: {}",
                  name, graph, mesh.replica, remedy)};
}

}  // namespace starling
