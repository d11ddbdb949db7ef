// The shuffle of parallel SGD moves real samples between the ranks, so that the part of each rank represents
// the whole. Each rank distributes its samples in random order and equal parts over all ranks, so (p − 1)/p
// of the samples move.
#pragma once

#include <memory>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/data/source.h"

namespace starling {

// The result of a shuffle on one rank.
struct SampleShuffle {
  std::shared_ptr<const Source> samples;  // the samples of this rank after the shuffle, in memory
  int64_t moved = 0;                      // number of samples that this rank sent to other ranks
  uint64_t bytes = 0;                     // their bytes
  double seconds = 0;                     // duration of the shuffle
};

// Shuffles the samples of all ranks. Collective. `own` holds this rank's samples. They are read once, as in
// epoch 0 (augmentation is frozen), and kept in memory. Errors: ConfigError on all ranks if the tensors of
// samples differ in shape or type.
SampleShuffle shuffle_samples(Group& group, const Clock& clock, const Source& own, uint64_t seed);

}  // namespace starling
