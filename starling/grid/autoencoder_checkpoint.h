// Checkpoints of an autoencoder on a grid (train_autoencoder.h). Each rank writes the filters and momenta of
// its own positions. A run on another grid reads the parts that overlap with its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/grid/rank_grid.h"
#include "starling/grid/train_autoencoder.h"
#include "starling/job/job_checkpoint.h"

namespace starling {

// A rank's part of a tensor [rows, columns, maps, inputs] over output positions.
struct GridTensor {
  std::string name;               // in the checkpoint
  at::Tensor tensor;              // contiguous
  int64_t rows = 0, columns = 0;  // of the whole tensor
};

// AutoencoderCheckpoint reads and writes the checkpoints. All functions are collective. Errors: those of
// JobCheckpoint.
class AutoencoderCheckpoint {
 public:
  // The group must outlive this object.
  AutoencoderCheckpoint(const GridAutoencoderOptions& options, Group& group, const RankGrid& grid);

  // Returns the steps of the newest checkpoint, or -1 if there is none.
  int64_t find();
  // Reads this rank's part of the tensors from the checkpoint that find() has found.
  void read(const std::vector<GridTensor>& tensors) const;
  // Writes a checkpoint, unless the folder has that of these steps.
  void save(int64_t steps, const std::vector<GridTensor>& tensors);

 private:
  void read_parts(const std::vector<GridTensor>& tensors) const;

  const bool enabled_;
  Group& group_;
  const RankGrid grid_;
  JobCheckpoint checkpoint_;
  JobState state_;
  int64_t saved_ = -1;  // steps
};

}  // namespace starling
