// Tally: what the loop needs of the other ranks besides its strategy: a few numbers of each, listed by rank where the run is
// reported.
#pragma once

#include <string>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Errors: those of the group or the store below.
class Tally {
 public:
  virtual ~Tally() = default;
  // This rank and the number of ranks, as they were when the run (or its generation) began.
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Whether this rank speaks for the run: the lowest one that is left.
  virtual bool leads() const = 0;
  // Collective: the numbers of every rank, complete where leads() is true afterwards; empty for ranks that were lost. `what`
  // names the occasion, the same on all ranks, once in a run.
  virtual std::vector<std::vector<double>> gather(const std::string& what,
                                                  const std::vector<double>& own) = 0;
  // The same at the end of a run. Ranks that do not lead return (something incomplete) only when a leader has said
  // reported(): until then they may have to lead themselves.
  virtual std::vector<std::vector<double>> gather_last(const std::vector<double>& own) = 0;
  virtual void reported() {}
};

// All ranks of a group, none of which may be lost.
class GroupTally final : public Tally {
 public:
  explicit GroupTally(Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int ranks() const override { return group_.size(); }
  bool leads() const override { return group_.rank() == 0; }
  std::vector<std::vector<double>> gather(const std::string& what, const std::vector<double>& own) override;
  std::vector<std::vector<double>> gather_last(const std::vector<double>& own) override;

 private:
  Group& group_;
};

}  // namespace starling
