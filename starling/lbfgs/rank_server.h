// RankServer is the serving side of a rank: its slice of all vectors, and the thread that computes portions.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "starling/lbfgs/gradient_fold.h"
#include "starling/lbfgs/portion_worker.h"
#include "starling/lbfgs/rank_board.h"
#include "starling/lbfgs/solve.h"
#include "starling/lbfgs/vector_shard.h"

namespace starling {

// Used by the thread that calls solve_logistic().
class RankServer {
 public:
  // Starts the computing thread. portions: of an evaluation. The references must outlive this object.
  RankServer(const LbfgsOptions& options, const LbfgsParts& parts, int portions);
  // The computing thread must have ended, by join_worker() or break_off().
  ~RankServer() = default;
  RankServer(const RankServer&) = delete;

  VectorShard& shard() { return shard_; }
  RankBoard& board() { return board_; }
  ByteCounts& bytes() { return bytes_; }

  // Carries out this rank's part of an evaluation at kTrial. Collective. Calls `look` until all portions are
  // in the gradient; it returns true if it has found something to do.
  VectorShard::Part evaluate(int64_t number, const std::function<bool()>& look);
  // Writes this rank's part of a checkpoint.
  void save(int64_t iteration);
  // Reads this rank's part from a checkpoint of `ranks` ranks.
  void load(int64_t iteration, int ranks);
  // Sends scalars to the coordinator, from another rank than rank 0.
  void reply(std::span<const double> values);

  // Waits for the end of the computing thread, after board().stop(). Adds its bytes to bytes().
  void join_worker();
  // Ends the group and the computing thread after a fault. Rethrows the failure of the computing thread, if
  // it was the first.
  void break_off(const std::string& reason);

 private:
  std::shared_ptr<const std::vector<double>> gather_weights();
  bool take_parts();

  const LbfgsOptions& options_;
  const LbfgsParts& parts_;
  const int portions_;
  VectorShard shard_;
  GradientFold fold_;
  RankBoard board_;
  PortionWorker worker_;
  ByteCounts bytes_;
  std::vector<double> message_;
  int64_t saved_ = -1;  // the iteration of the last checkpoint
  std::jthread thread_;
};

}  // namespace starling
