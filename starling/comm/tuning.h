// What `starling bench comm --tune` has found: the fastest algorithm of each (collective, size, ranks, hosts, link). A text file,
// one line an entry:
//
//   all-reduce 1048576 4 2 tcp direct 512.3
//   collective bytes ranks hosts link algorithm microseconds
//
// Lines that begin with # and empty lines are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/algorithm.h"

namespace starling {

struct TuningEntry {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint64_t bytes = 0;
  int ranks = 0;
  int hosts = 0;
  std::string link;
  Algorithm algorithm = Algorithm::kAuto;
  double microseconds = 0;
};

class Tuning {
 public:
  Tuning() = default;
  // ConfigError naming `source` and the line that is none.
  static Tuning parse(const std::string& text, const std::string& source);
  std::string text() const;

  // Replaces the entry of the same collective, bytes, ranks, hosts and link.
  void set(const TuningEntry& entry);
  // The entry of the nearest size (by ratio) for this collective, ranks, hosts and link; null if there is none.
  const TuningEntry* nearest(CollectiveKind kind, uint64_t bytes, int ranks, int hosts,
                             const std::string& link) const;
  // The entries for this many ranks on this many hosts and this link.
  Tuning of(int ranks, int hosts, const std::string& link) const;
  const std::vector<TuningEntry>& entries() const { return entries_; }

 private:
  std::vector<TuningEntry> entries_;
};

}  // namespace starling
