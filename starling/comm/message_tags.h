// The tags of messages and the counters of LocalSync. Each has one list, so that no two users of a group take
// the same value. The groups of c10d are separate and use the caller's tags. A worker and a parameter server
// have a group of their own, and so their tags may be small.
#pragma once

#include <cstdint>

namespace starling {

// The tags of point-to-point messages. The pipeline uses all tags from kPipelineTag up to kTiedTag. An engine
// with fewer tags (MPI) folds them, so the lowest bits differ, too.
enum MessageTag : uint32_t {
  kServerHeadTag = 1,               // parameter server: the head of a request or an answer
  kServerBodyTag = 2,               // parameter server: its values
  kGossipTag = 0x01000011,          // gossip: weights for a neighbor
  kBatchTag = 0x02000012,           // parallel SGD: mini-batches on which candidates are compared
  kGatherTag = 0x03000013,          // flat replicas: a rank's range for rank 0
  kPushStateTag = 0x05000015,       // parameter server: the state of push codecs for a checkpoint
  kFactorBlockTag = 0x06000016,     // factorization: a block of H
  kExchangeTag = 0x07000017,        // an exchange between replicas that has no tag of its own in this list
  kMeetingTag = 0x08000018,         // asynchronous ranks: when they stop, and that they wait (Meetings)
  kPortionRequestTag = 0x09000019,  // L-BFGS: a free rank asks rank 0 for a portion of an evaluation
  kPortionAnswerTag = 0x0a00001a,   // L-BFGS: the answer of rank 0
  kGradientPartTag = 0x0b00001b,    // L-BFGS: a part of a gradient for a shard
  kScalarsTag = 0x0c00001c,         // L-BFGS: scalars for the coordinator
  kSamplingTag = 0x0f00001f,        // MCMC: the end of sampling, and the draws for rank 0
  kLinkTag = 0x0d00001d,            // device placement: the round trips that measure a link
  kHaloTag = 0x0e00001e,            // grids: the edge of a rank's part of an image
  kPipelineTag =
      0x50000000,         // pipeline: shapes, activations, gradients, up to kTiedTag (schedule_executor.cc)
  kTiedTag = 0x5c000001,  // pipeline: parameters that several stages share
  kTimelineTag = 0x5d000002,     // pipeline: what a rank did in the last step
  kStateTag = 0x5e000003,        // pipeline: a stage's state for rank 0
  kTensorStateTag = 0x5f000004,  // tensor parallelism: a slice's state for rank 0
};

// LocalCounter is a counter of a group's LocalSync (comm/host/local_sync.h).
enum LocalCounter : int {
  kFilledCounter = 0,  // gradient reducer: buckets that this rank has completed
  kDoneCounter = 1,    // gradient reducer: steps whose work this rank has done
};

}  // namespace starling
