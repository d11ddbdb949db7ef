// Coordinator is rank 0's control part. It turns the instructions of the loop into broadcasts, adds the
// scalars that the ranks reply, and hands out portions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "starling/lbfgs/portions.h"
#include "starling/lbfgs/rank_server.h"
#include "starling/lbfgs/vector_machine.h"

namespace starling {

// Used by the thread of rank 0 that calls solve_logistic(). Sums over ranks are added in rank order.
class Coordinator final : public VectorMachine {
 public:
  // own: of rank 0. The references must outlive this object.
  Coordinator(const LbfgsOptions& options, const LbfgsParts& parts, RankServer& own,
              PortionScheduler& scheduler);

  // Compares the samples of all ranks by `hash`, that of rank 0. Errors: DataError if they differ.
  void compare_samples(uint64_t hash);
  void combine(VectorId target, std::span<const VectorTerm> terms) override;
  std::vector<double> dots(std::span<const VectorPair> pairs) override;
  Evaluation evaluate() override;
  // Makes all ranks write their part of a checkpoint. Errors: Error(kCheckpoint) if a rank cannot.
  void save(int64_t iteration);
  // Makes all ranks read their part of a checkpoint that `ranks` ranks have written.
  void load(int64_t iteration, int ranks);
  // Ends the work of all ranks in order, and tells them why the loop ended, or that rank 0 has failed.
  // Returns the bytes that they have sent.
  ByteCounts stop(std::optional<MinimizeEnd> end);

  // Returns true if another rank than rank 0 was asked to stop before the last evaluation ended.
  bool asked_to_stop() const { return asked_to_stop_; }

  int64_t instructions() const { return instructions_; }
  int64_t requests() const { return requests_; }
  int64_t evaluations() const { return evaluation_; }

 private:
  void instruct(const InstructionHead& head, std::span<const std::byte> body = {});
  // Calls take(rank, scalars) for each rank but rank 0, in rank order.
  template <typename Take>
  void replies(size_t scalars, const Take& take);
  bool answer_requests();
  void answer(int rank, const PortionRequest& request);

  const LbfgsOptions& options_;
  const LbfgsParts& parts_;
  RankServer& own_;
  PortionScheduler& scheduler_;
  std::vector<double> losses_;  // of the portions of an evaluation
  int64_t evaluation_ = 0;      // the number of the last one
  bool evaluating_ = false;
  bool asked_to_stop_ = false;
  int ended_ = 0;  // computing threads that ask for no more
  int64_t instructions_ = 0, requests_ = 0;
};

}  // namespace starling
