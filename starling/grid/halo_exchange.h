// HaloExchange moves the halos of one layer between the ranks of a grid. It has two linear maps, and each is
// the adjoint of the other one:
//
//   gather    a rank's part of the input -> the pixels under its windows, with zeros outside of the image
//   scatter   values for the pixels under its windows -> its part, as the sum over all ranks
//
// gather is forward in a layer, and scatter is its backward pass. A decoder has them the other way around.
// Sums are in the order of the ranks, so that they are reproducible.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/comm/group.h"
#include "starling/grid/halo_plan.h"
#include "starling/grid/rank_grid.h"

namespace starling {

// What this rank has moved as halos.
struct HaloTraffic {
  uint64_t sent_bytes = 0;  // TrafficCount::sent()
  uint64_t messages = 0;    // sent
};

// GridGroup is a group whose ranks are a grid. One thread uses it, and a group of the caller's must outlive
// it. All ranks call the same layers in the same order.
class GridGroup {
 public:
  // Errors: ConfigError if the grid has another size than the group.
  GridGroup(Group& group, const RankGrid& grid);
  // Like the constructor above, for a group that belongs to this object.
  GridGroup(std::unique_ptr<Group> group, const RankGrid& grid);

  // The group below.
  Group& group() { return group_; }
  // The sides of the grid.
  const RankGrid& grid() const { return grid_; }
  // This rank in the group.
  int rank() const { return group_.rank(); }
  // The halos of all layers so far.
  HaloTraffic& traffic() { return traffic_; }

 private:
  const std::unique_ptr<Group> owned_;  // null if the group belongs to the caller
  Group& group_;
  const RankGrid grid_;
  HaloTraffic traffic_;
};

// HaloExchange moves tensors [n, channels, rows, columns] in host memory. Not thread-safe.
class HaloExchange {
 public:
  // The grid must outlive this object, and this object must outlive the backward passes of what its functions
  // return. Errors: those of halo_plan().
  HaloExchange(GridGroup& grid, const ImageWindows& windows, int64_t height, int64_t width);

  const HaloPlan& plan() const { return plan_; }

  // Returns the pixels plan().covered for the pixels plan().own. Differentiable. Errors: ConfigError for a
  // tensor of another size or on a device, before anything is sent; those of Group::send() and Group::recv().
  at::Tensor gather(const at::Tensor& own);
  // Returns the sums at the pixels plan().own of all ranks' values at plan().covered. What lies outside of
  // the image is dropped. Differentiable. Errors: as gather().
  at::Tensor scatter(const at::Tensor& covered);

 private:
  at::Tensor move_halo(const at::Tensor& from, const PixelRect& from_at, const std::vector<HaloPart>& sends,
                       const PixelRect& to_at, const std::vector<HaloPart>& receives);
  at::Tensor to_covered(const at::Tensor& own);
  at::Tensor to_own(const at::Tensor& covered);

  GridGroup& grid_;
  const HaloPlan plan_;
};

}  // namespace starling
