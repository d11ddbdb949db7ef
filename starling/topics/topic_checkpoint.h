// Checkpoints of topic models. Each rank stores the topic of each of its tokens, which determines all counts.
#pragma once

#include <cstdint>

#include "starling/job/job_checkpoint.h"
#include "starling/topics/documents.h"
#include "starling/topics/train_topics.h"

namespace starling {

// TopicCheckpoint writes and reads the topics of a run at the end of sweeps.
class TopicCheckpoint {
 public:
  // The arguments must outlive this object. Collective. Errors: CommError.
  TopicCheckpoint(const TopicOptions& options, const TopicParts& parts);

  // Fills in the topics from the checkpoint, which any number of ranks may have written. Returns its sweep,
  // or −1 if there is none. Collective. Errors: as JobCheckpoint::find() and read().
  int64_t resume(Documents& documents);
  // Writes the topics after `sweep` sweeps. Does nothing without a folder. Collective. Errors: as
  // JobCheckpoint::save().
  void save(int64_t sweep, const Documents& documents);

 private:
  const TopicParts& parts_;
  const bool active_;
  const int32_t topics_;
  JobCheckpoint checkpoint_;
};

}  // namespace starling
