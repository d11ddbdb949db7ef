#include "starling/grid/halo_exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/grid/tensor_rect.h"
#include "starling/nn/tensor_parallel/regions.h"

namespace starling {
namespace {

// Returns the pixels `part` of a tensor that holds the pixels `whole`, as a view.
at::Tensor pixels_of(const at::Tensor& tensor, const PixelRect& whole, const PixelRect& part) {
  return rect_of(tensor, 2, whole, part);
}

// Checks a tensor that should hold the pixels `whole`.
void check_pixels(const at::Tensor& tensor, const PixelRect& whole) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("input",
                      fmt::format("{}; this rank's part is [samples, channels, {}, {}] in host memory", what,
                                  whole.rows.count(), whole.columns.count()));
  };
  if (!tensor.defined()) refuse("a tensor without content");
  if (tensor.dim() != 4) refuse(fmt::format("a tensor of {} dimensions", tensor.dim()));
  if (!tensor.is_cpu()) refuse(fmt::format("a tensor on {}", tensor.device().str()));
  if (tensor.size(2) != whole.rows.count() || tensor.size(3) != whole.columns.count())
    refuse(fmt::format("a tensor of {} × {} pixels", tensor.size(2), tensor.size(3)));
}

void check_grid_size(const RankGrid& grid, const Group& group) {
  if (grid.size() != group.size())
    throw ConfigError("--grid", fmt::format("a grid of {} needs {} ranks, but the group has {}",
                                            text_of(grid), grid.size(), group.size()));
}

}  // namespace

GridGroup::GridGroup(Group& group, const RankGrid& grid) : group_(group), grid_(grid) {
  check_grid_size(grid, group);
}

GridGroup::GridGroup(std::unique_ptr<Group> group, const RankGrid& grid)
    : owned_(std::move(group)), group_(*owned_), grid_(grid) {
  check_grid_size(grid, group_);
}

HaloExchange::HaloExchange(GridGroup& grid, const ImageWindows& windows, int64_t height, int64_t width)
    : grid_(grid), plan_(halo_plan(grid.grid(), grid.rank(), windows, height, width)) {}

at::Tensor HaloExchange::gather(const at::Tensor& own) {
  check_pixels(own, plan_.own);
  return linear_map([this](const at::Tensor& x) { return to_covered(x); },
                    [this](const at::Tensor& dy) { return to_own(dy); })(own);
}

at::Tensor HaloExchange::scatter(const at::Tensor& covered) {
  check_pixels(covered, plan_.covered);
  return linear_map([this](const at::Tensor& y) { return to_own(y); },
                    [this](const at::Tensor& dx) { return to_covered(dx); })(covered);
}

at::Tensor HaloExchange::to_covered(const at::Tensor& own) {
  return move_halo(own, plan_.own, plan_.sends, plan_.covered, plan_.receives);
}

at::Tensor HaloExchange::to_own(const at::Tensor& covered) {
  return move_halo(covered, plan_.covered, plan_.receives, plan_.own, plan_.sends);
}

at::Tensor HaloExchange::move_halo(const at::Tensor& from, const PixelRect& from_at,
                                   const std::vector<HaloPart>& sends, const PixelRect& to_at,
                                   const std::vector<HaloPart>& receives) {
  check_pixels(from, from_at);
  Group& group = grid_.group();
  const uint64_t before = group.traffic().sent();
  for (const HaloPart& part : sends) {  // a rank takes in messages while it sends
    const at::Tensor message = pixels_of(from, from_at, part.pixels).contiguous();
    send(group, message.const_data_ptr(), message.nbytes(), part.peer, kHaloTag);
  }
  at::Tensor to =
      at::zeros({from.size(0), from.size(1), to_at.rows.count(), to_at.columns.count()}, from.options());
  const PixelRect kept = common_rect(plan_.own, plan_.needed);
  const auto add = [&](const at::Tensor& values, const PixelRect& pixels) {
    pixels_of(to, to_at, pixels).add_(values);
  };
  bool added = kept.area() == 0;
  const auto add_kept = [&] {
    if (!added) add(pixels_of(from, from_at, kept), kept);
    added = true;
  };
  for (const HaloPart& part : receives) {
    const at::Tensor message = at::empty(
        {from.size(0), from.size(1), part.pixels.rows.count(), part.pixels.columns.count()}, from.options());
    recv(group, message.mutable_data_ptr(), message.nbytes(), part.peer, kHaloTag);
    if (part.peer > group.rank()) add_kept();
    add(message, part.pixels);
  }
  add_kept();
  grid_.traffic().sent_bytes += group.traffic().sent() - before;
  grid_.traffic().messages += sends.size();
  return to;
}

}  // namespace starling
