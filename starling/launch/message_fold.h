// MessageFold: of the same line from several ranks, prints one.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "starling/base/clock.h"

namespace starling {

// A line is held for `window` after it first appears, so that the other ranks can say it too, and then printed once:
//   "rank 1: TEXT (2 other ranks said the same)"
// Later repeats are counted, not printed; finish() tells how many there were. Lines that differ only in a glog prefix
// ("[W1121 01:02:03.456789 file.cc:12] ") or in white space at the end are the same. After `most_lines` different lines the rest
// is left to the logs. Not thread-safe.
class MessageFold {
 public:
  using Print = std::function<void(const std::string& line)>;

  MessageFold(const Clock& clock, Print print, Nanoseconds window = std::chrono::milliseconds(300),
              int most_lines = 200)
      : clock_(clock), print_(std::move(print)), window_(window), most_lines_(most_lines) {}

  void add(int rank, const std::string& line);
  // Prints what has waited long enough.
  void poll();
  // When poll() has something to do next.
  std::optional<Nanoseconds> deadline() const;
  // Drops what waits and only `rank` has said.
  void forget(int rank);
  // Prints what still waits, and the numbers of later repeats.
  void finish();

 private:
  struct Entry {
    int order = 0;  // of first appearance
    int first_rank = 0;
    std::string text;
    std::set<int> ranks;
    Nanoseconds due{};
    bool printed = false;
    int64_t repeats = 0;  // after it was printed
  };
  void print(Entry& entry);
  std::map<int, Entry*> by_order();

  const Clock& clock_;
  const Print print_;
  const Nanoseconds window_;
  const int most_lines_;
  std::map<std::string, Entry> entries_;
  int next_order_ = 0;
  int64_t beyond_ = 0;  // lines after most_lines
};

}  // namespace starling
