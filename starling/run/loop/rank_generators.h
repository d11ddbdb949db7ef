// The state of torch's default generator on each rank. A user's module may draw from it in every step, as
// torch::nn::Dropout does.
//
//   One rank             Starling neither seeds the generator nor draws from it. Its state is the user's.
//   Several ranks        The generator of replica r is seeded by (train.seed, r).
//   A resumed run        The states are those of the checkpoint.
//   Other ranks now      Replica r is seeded by (train.seed, step, r), if the checkpoint has the states of
//                        another number of ranks, or lacks one because the rank was lost.
//
// Ranks that share a replica have equal seeds, so that layers which each of them computes as a whole draw
// equal masks.
#pragma once

#include <map>
#include <string>

#include "starling/comm/group.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"

namespace starling {

// Sets the generator of this process for the next step. `rank` is this rank in the numbering that the run
// began with. `resumed` is the checkpoint that the run resumes from, or null. Errors: Error (kCheckpoint) if
// the checkpoint's state is malformed.
void begin_generator(const RunSpec& spec, int rank, const CheckpointState* resumed);

// Returns the states of the generators of all ranks, for CheckpointState::ranks. `rank` is as above.
// Collective over the group.
std::map<std::string, TensorMap> generators_of_ranks(const RunSpec& spec, int rank, Group& group);

}  // namespace starling
