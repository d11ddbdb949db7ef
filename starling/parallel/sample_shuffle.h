// The shuffle of parallel SGD: real samples move between the ranks' storage, so that each rank's part stands for the whole.
// Every rank deals its samples, in random order, in equal parts to all ranks: (p − 1)/p of them move.
#pragma once

#include <memory>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"

namespace starling {

struct SampleShuffle {
  std::shared_ptr<const Source> samples;  // this rank's afterwards, in memory
  int64_t moved = 0;                      // samples that this rank sent to others
  uint64_t bytes = 0;                     // their bytes
  double seconds = 0;
};

// Collective. `own`: this rank's samples; read once, as of epoch 0 (augmentation is frozen), and kept in memory.
SampleShuffle shuffle_samples(Group& group, const Clock& clock, const Source& own, uint64_t seed);

}  // namespace starling
