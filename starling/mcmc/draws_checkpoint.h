// Checkpoints of one sub-posterior. They are of no concern to other ranks: a sub-posterior has a folder of
// its own, and saving sends nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/comm/group.h"
#include "starling/job/folder_lock.h"
#include "starling/job/job_checkpoint.h"
#include "starling/mcmc/chain.h"
#include "starling/mcmc/draws.h"
#include "starling/mcmc/sample_posterior.h"

namespace starling {

// DrawsCheckpoint keeps the state of a chain and its draws.
class DrawsCheckpoint {
 public:
  // Sub-posterior `number` of `count`. `holder` holds the lock of McmcOptions::checkpoint.
  DrawsCheckpoint(const McmcOptions& options, const Posterior& posterior, int number, int count,
                  const LockHolder& holder);
  // Reads the checkpoint into the chain and its draws. Returns the transitions that the chain has made, or -1
  // if there is no checkpoint. Errors: those of JobCheckpoint; Error(kCheckpoint) if the state or the draws
  // do not belong to such a chain after so many transitions.
  int64_t load(Chain& chain, PosteriorDraws& draws);
  // Writes a checkpoint with all draws so far, unless the folder has that of these transitions. Without
  // McmcOptions::checkpoint it copies nothing. Errors: those of JobCheckpoint; Error(kCheckpoint) if another
  // run has taken the lock.
  void save(int64_t transitions, const Chain& chain, const PosteriorDraws& draws);

 private:
  const bool enabled_;
  const int64_t warmup_;          // transitions that give no draws
  const int64_t dimensions_;      // numbers per draw
  std::unique_ptr<Group> alone_;  // a group of one rank, because a sub-posterior waits for no other one
  JobCheckpoint checkpoint_;
  int64_t saved_ = -1;  // transitions
};

}  // namespace starling
