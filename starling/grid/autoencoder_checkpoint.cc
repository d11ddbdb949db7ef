#include "starling/grid/autoencoder_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <span>

#include "starling/base/error.h"
#include "starling/grid/tensor_rect.h"

namespace starling {
namespace {

constexpr const char* kGridValue = "grid";

std::string windows_text(const ImageWindows& windows) {
  return fmt::format("{}/{}/{}", windows.size, windows.stride, windows.padding);
}

std::map<std::string, std::string> problem_of(const GridAutoencoderOptions& options) {
  std::map<std::string, std::string> problem = {
      {"data", options.data},
      {"images",
       fmt::format("{}x{}x{}", options.images.channels, options.images.height, options.images.width)},
      {"layers", fmt::format("{}", options.layers.size())},
      {"sparsity", fmt::format("{}", options.sparsity)},
      {"lr", fmt::format("{}", options.lr)},
      {"momentum", fmt::format("{}", options.momentum)},
      {"batch", fmt::format("{}", options.batch)},
      {"steps", fmt::format("{}", options.steps)},
      {"seed", fmt::format("{}", options.seed)},
      {"precision", options.type == at::kDouble ? "fp64" : "fp32"}};
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const MacroLayerOptions& layer = options.layers[l];
    problem[fmt::format("layer-{}", l + 1)] = fmt::format(
        "maps {}, fields {}, pool {}, norm {}, floor {}, epsilon {}", layer.maps, windows_text(layer.fields),
        windows_text(layer.pool), layer.norm.size, layer.norm.floor, layer.epsilon);
  }
  return problem;
}

JobCheckpointOptions job_of(const GridAutoencoderOptions& options) {
  return {.folder = options.checkpoint, .job = "autoencoder", .problem = problem_of(options)};
}

// The grid that wrote a checkpoint.
RankGrid grid_of_checkpoint(const JobState& state) {
  try {
    return rank_grid_of(state.values.at(kGridValue), state.ranks);
  } catch (const std::exception&) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint of step {} names no grid of {} ranks; remove its folder to start "
                            "anew",
                            state.step, state.ranks));
  }
}

}  // namespace

AutoencoderCheckpoint::AutoencoderCheckpoint(const GridAutoencoderOptions& options, Group& group,
                                             const RankGrid& grid)
    : enabled_(!options.checkpoint.empty()),
      group_(group),
      grid_(grid),
      checkpoint_(group, job_of(options)) {}

int64_t AutoencoderCheckpoint::find() {
  const std::optional<JobState> state = checkpoint_.find();
  if (!state) return -1;
  state_ = *state;
  if (grid_of_checkpoint(state_) == grid_) saved_ = state_.step;
  return state_.step;
}

void AutoencoderCheckpoint::read(const std::vector<GridTensor>& tensors) const {
  agree_on_success(group_, [&] { read_parts(tensors); });
}

void AutoencoderCheckpoint::read_parts(const std::vector<GridTensor>& tensors) const {
  at::NoGradGuard no_grad;
  const RankGrid writers = grid_of_checkpoint(state_);
  for (int writer = 0; writer < writers.size(); ++writer) {
    std::optional<CheckpointArrays> arrays;  // read if this rank needs something of it
    for (const GridTensor& own : tensors) {
      const PixelRect written = writers.part(writer, own.rows, own.columns);
      const PixelRect part = grid_.part(group_.rank(), own.rows, own.columns);
      const PixelRect both = common_rect(written, part);
      if (both.area() == 0) continue;
      if (!arrays) arrays = checkpoint_.read(state_, writer);
      std::vector<std::byte> bytes = arrays->get<std::byte>(own.name);
      const at::Tensor& to = own.tensor;
      const std::vector<int64_t> shape = {written.rows.count(), written.columns.count(), to.size(2),
                                          to.size(3)};
      const size_t expected =
          static_cast<size_t>(written.area() * shape[2] * shape[3]) * static_cast<size_t>(to.element_size());
      if (bytes.size() != expected)
        throw Error(
            ErrorCode::kCheckpoint,
            fmt::format("the part of rank {} of the checkpoint of step {} has {} bytes of {}, and not "
                        "{}; remove its folder to start anew",
                        writer, state_.step, bytes.size(), own.name, expected));
      const at::Tensor values = at::from_blob(bytes.data(), shape, to.options().requires_grad(false));
      rect_of(to, 0, part, both).copy_(rect_of(values, 0, written, both));
    }
  }
}

void AutoencoderCheckpoint::save(int64_t steps, const std::vector<GridTensor>& tensors) {
  if (!enabled_ || steps == saved_) return;
  CheckpointArrays arrays;
  for (const GridTensor& own : tensors)
    arrays.put<std::byte>(
        own.name, std::span(static_cast<const std::byte*>(own.tensor.const_data_ptr()), own.tensor.nbytes()));
  checkpoint_.save(steps, arrays, {{kGridValue, text_of(grid_)}});
  saved_ = steps;
}

}  // namespace starling
