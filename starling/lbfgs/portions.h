// PortionScheduler hands out the portions of an evaluation to ranks (Dean et al. 2012, section 4.2).
//
// The samples are cut into many more portions than there are ranks. A free rank gets the next portion. When
// all portions are handed out, a free rank gets a backup copy of the portion that has been in work for
// longest. The first copy that is finished counts. A slow rank therefore delays an evaluation by at most
// about one portion of a fast rank.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace starling {

// How samples are shared out.
struct PortionRules {
  int ranks = 1;
  int per_rank = 32;  // portions per rank
  // The samples. There are not more portions than samples, unless `equal` is set.
  int64_t samples = std::numeric_limits<int64_t>::max();
  bool backups = true;  // hand out backup copies
  bool equal = false;   // one portion per rank, each for its own rank, without copies
};

// Returns the number of portions of an evaluation. Errors: ConfigError if there is no rank, no portion or no
// sample, and for more portions than 2³¹ − 1.
int count_portions(const PortionRules& rules);

// What a scheduler has counted since its start.
struct PortionCounts {
  std::vector<int64_t> delivered;  // by rank: portions whose first finished copy was that of the rank
  int64_t copies = 0;              // backup copies that were handed out
  int64_t copies_first = 0;        // backup copies that were finished first
};

// Pure logic: no clock, no threads. Not thread-safe.
class PortionScheduler {
 public:
  // Errors: those of count_portions().
  explicit PortionScheduler(const PortionRules& rules);

  // Returns the number of portions of an evaluation.
  int portions() const { return portions_; }
  // Starts an evaluation: no portion is handed out yet.
  void begin();
  // Returns the portion that a free rank computes next, or nothing if it has to wait for the next evaluation.
  // A rank is free if it holds no unfinished portion, or gave up the one that it held.
  std::optional<int> next(int rank);
  // Notes that a rank has finished a portion. Returns true if its copy is the first, and false if another
  // copy was finished before. Errors: CommError if the rank was not given that portion.
  bool finish(int rank, int portion);
  // Returns true if all portions are finished.
  bool done() const { return finished_ == portions_; }
  // Returns what was counted.
  const PortionCounts& counts() const { return counts_; }

 private:
  struct State {
    std::vector<int> holders;  // ranks with a copy, in the order in which they got it
    bool finished = false;
  };
  std::optional<int> slowest_for(int rank) const;

  const PortionRules rules_;
  const int portions_;
  std::vector<State> states_;
  std::vector<int> handed_out_;  // portions in the order in which they were handed out
  int fresh_ = 0;                // the first portion that was not handed out
  int finished_ = 0;
  PortionCounts counts_;
};

}  // namespace starling
