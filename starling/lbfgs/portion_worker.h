// PortionWorker is the computing thread of a rank: it asks rank 0 for portions, computes their gradients, and
// sends them to the shards.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "starling/lbfgs/rank_board.h"
#include "starling/lbfgs/solve.h"

namespace starling {

// Used by one thread.
class PortionWorker {
 public:
  // portions: of an evaluation. All references must outlive this object.
  PortionWorker(const LbfgsOptions& options, const LbfgsParts& parts, RankBoard& board, int portions);

  // Works until the board stops it. Errors: CommError.
  void run();
  // Returns the bytes that it has sent. Call it after run().
  const ByteCounts& bytes() const { return bytes_; }

 private:
  PortionAnswer ask(const PortionRequest& request);
  void tell(const PortionRequest& request);
  // Computes a portion. Returns its loss, or nothing if the evaluation is over.
  std::optional<double> compute(const OpenEvaluation& evaluation, int portion);
  void deliver(int portion);
  double slowdown(int64_t evaluation) const;

  const LbfgsOptions& options_;
  const LbfgsParts& parts_;
  RankBoard& board_;
  const int portions_;
  std::vector<double> gradient_;
  std::vector<double> message_;
  ByteCounts bytes_;
};

}  // namespace starling
