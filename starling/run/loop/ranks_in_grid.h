// Divides a locally connected network of a program's own over the ranks of a run.
//
//   int main(int argc, char** argv) {
//     starling::Run run = starling::init(argc, argv);
//     const auto grid = starling::ranks_in_grid(run, "2x2");
//     starling::GridLocallyConnected2d filters(*grid, options);
//     const at::Tensor y = filters->forward(x);  // x and y: this rank's part of an image
//   }
#pragma once

#include <memory>
#include <string>

#include "starling/grid/grid_layers.h"
#include "starling/grid/halo_exchange.h"
#include "starling/run/run.h"

namespace starling {

// Returns the ranks of the run as a grid (rank_grid_of() in grid/rank_grid.h), for the layers of
// grid/grid_layers.h. Collective. The run must outlive it, and it must outlive the layers. With --dry-run the
// text is checked, and the grid has one rank.
//
// Errors: a fault ends the process, or is thrown, as a fault of fit() does: ConfigError if `grid` does not
// fit the number of ranks. Faults of the layers are thrown by their functions.
std::unique_ptr<GridGroup> ranks_in_grid(Run& run, const std::string& grid = "");

}  // namespace starling
