// The messages of Sandblaster L-BFGS. All have a fixed layout, because ranks run one program.
//
// Instructions are broadcasts of rank 0: a head and, for some, terms or pairs. Their replies are scalars.
// Rank 0 hands out portions by messages to single ranks. Elements of vectors never travel in these messages.
#pragma once

#include <cstdint>

namespace starling {

enum class InstructionCode : uint32_t {
  kDescribe = 1,  // reply: the hash of this rank's samples
  kCombine = 2,   // `count` terms follow; no reply
  kDots = 3,      // `count` pairs follow; reply: this shard's part of each product
  // Reply: squares of weights, largest element of the gradient, and 1 if this rank was asked to stop.
  kEvaluate = 4,
  kSave = 5,  // writes this rank's part of a checkpoint; reply: 0, or 1 if that is impossible
  kLoad = 6,  // reads it from the parts that `count` ranks have written; reply: 0
  kStop = 7,  // `count` is the outcome (below); reply: ByteCounts
};

// The outcomes in an instruction kStop. Any other number is kFirstEnd plus the MinimizeEnd of the loop.
inline constexpr uint32_t kRank0Failed = 0, kFirstEnd = 1;

// The head of an instruction.
struct InstructionHead {
  InstructionCode code = InstructionCode::kStop;
  uint32_t count = 0;
  // kCombine: the vector. kEvaluate: the number of the evaluation. kSave and kLoad: that of the iteration.
  uint64_t target = 0;
};

// What a rank asks rank 0 for when it is free.
struct PortionRequest {
  int64_t evaluation = 0;  // the evaluation in which it computes; kWorkerEnds: the rank asks for no more
  int32_t finished = -1;   // the portion that it has finished, or -1
  int32_t unused = 0;
  double loss = 0;  // of the finished portion
};
inline constexpr int64_t kWorkerEnds = -1;

// The answer of rank 0.
struct PortionAnswer {
  int64_t evaluation = 0;  // the evaluation of `next`
  int32_t next = -1;       // the next portion, or -1 if there is none in this evaluation
  // The finished portion counts: its gradient goes to the shards.
  int32_t deliver = 0;
};

// The head of a part of a gradient, which goes from a worker to a shard.
struct GradientHead {
  int64_t portion = 0;
};

// The bytes that a rank has sent.
struct ByteCounts {
  double scalars = 0;   // instructions and replies
  double portions = 0;  // requests for portions and their answers
  double vectors = 0;   // weights and gradients
};

}  // namespace starling
