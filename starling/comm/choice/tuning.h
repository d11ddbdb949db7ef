// Tuning: the results of `starling bench comm --tune`. They give the fastest algorithm for each collective,
// size, number of ranks and hosts, and link.
//
// A tuning file is text with one entry per line, whose fields are collective, bytes, ranks, hosts, link,
// algorithm and microseconds. An example:
//
//   all-reduce 1048576 4 2 tcp direct 512.3
//
// Empty lines and lines that begin with # are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/algorithm.h"

namespace starling {

// TuningEntry is one line of a tuning file.
struct TuningEntry {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint64_t bytes = 0;
  int ranks = 0;
  int hosts = 0;
  std::string link;
  Algorithm algorithm = Algorithm::kAuto;
  double microseconds = 0;
};

// Tuning is a list of entries.
class Tuning {
 public:
  Tuning() = default;
  // Parses the text of a tuning file. Errors: ConfigError that names `source` and the number of the faulty
  // line.
  static Tuning parse(const std::string& text, const std::string& source);
  // Returns the entries as the text of a tuning file.
  std::string text() const;

  // Adds an entry, or replaces the entry with the same collective, bytes, ranks, hosts and link.
  void set(const TuningEntry& entry);
  // Returns the entry with the nearest size (by ratio) for this collective, ranks, hosts and link. Returns
  // null if there is none.
  const TuningEntry* nearest(CollectiveKind kind, uint64_t bytes, int ranks, int hosts,
                             const std::string& link) const;
  // Returns the entries for this many ranks on this many hosts over this link.
  Tuning of(int ranks, int hosts, const std::string& link) const;
  // All entries.
  const std::vector<TuningEntry>& entries() const { return entries_; }

 private:
  std::vector<TuningEntry> entries_;
};

}  // namespace starling
