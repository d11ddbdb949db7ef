// RankGather collects a few numbers from every rank on the rank that reports the run. The training loop uses
// it beside its strategy.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Collects numbers from all ranks. Errors: those of the group or of the store that carries the numbers.
class RankGather {
 public:
  virtual ~RankGather() = default;
  // The number of this rank, and the number of ranks, at the start of the run or of its generation.
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Returns true on the rank that reports the run: the lowest rank that is not lost.
  virtual bool leads() const = 0;
  // Returns true if the result of gather() is complete on every rank.
  virtual bool all_receive() const { return false; }
  // Returns the numbers of every rank, by rank. Collective. The result is complete on the rank where leads()
  // is true afterwards. A lost rank has an empty entry. `what` names the occasion: it is equal on all ranks
  // and occurs once in a run.
  virtual std::vector<std::vector<double>> gather(const std::string& what,
                                                  const std::vector<double>& own) = 0;
  // Like gather(), but the result is complete on every rank.
  virtual std::vector<std::vector<double>> gather_all(const std::string& what,
                                                      const std::vector<double>& own) = 0;
  // Like gather(), at the end of a run. A rank that does not lead returns, with an incomplete result, after
  // the leader has called reported(). Until then it may have to lead itself.
  virtual std::vector<std::vector<double>> gather_last(const std::vector<double>& own) = 0;
  // Tells the other ranks that the run has been reported.
  virtual void reported() {}
};

// Gathers over a group. No rank of the group may be lost. gather_last() returns the complete result on every
// rank and does not wait for reported().
class GroupGather final : public RankGather {
 public:
  explicit GroupGather(Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.size(); }
  bool leads() const override { return group_.rank() == 0; }
  bool all_receive() const override { return true; }
  std::vector<std::vector<double>> gather(const std::string& what, const std::vector<double>& own) override;
  std::vector<std::vector<double>> gather_all(const std::string& what,
                                              const std::vector<double>& own) override {
    return gather(what, own);
  }
  std::vector<std::vector<double>> gather_last(const std::vector<double>& own) override;

 private:
  Group& group_;
};

}  // namespace starling
