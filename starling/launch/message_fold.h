// MessageFold prints equal lines of several ranks once.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "starling/base/clock.h"

namespace starling {

// A line is held for `window` after its first appearance, so that equal lines of other ranks can arrive. It
// is then printed once:
//
//   "rank 1: TEXT (2 other ranks said the same)"
//
// Later repetitions are counted, and finish() prints how many there were. Lines are equal if they differ only
// in trailing white space, or in the severity, the time and the thread of a glog prefix. An example of such a
// prefix is "[W1121 01:02:03.456789 12 f.cc:7]". After `most_lines` different lines, further lines are in the
// logs only. Not thread-safe.
class MessageFold {
 public:
  using Print = std::function<void(const std::string& line)>;

  MessageFold(const Clock& clock, Print print, Nanoseconds window = std::chrono::milliseconds(300),
              int most_lines = 200)
      : clock_(clock), print_(std::move(print)), window_(window), most_lines_(most_lines) {}

  // Takes a line of a rank. Ignores a line without text.
  void add(int rank, const std::string& line);
  // Prints the lines that were held for `window`.
  void poll();
  // Returns the time at which poll() must be called next, if any.
  std::optional<Nanoseconds> deadline() const;
  // Discards held lines that only `rank` has written.
  void forget(int rank);
  // Prints all held lines, and the numbers of later repetitions.
  void finish();

 private:
  struct Entry {
    int order = 0;  // position in the order of first appearance
    int first_rank = 0;
    std::string text;
    std::set<int> ranks;
    Nanoseconds due{};
    bool printed = false;
    int64_t repeats = 0;  // repetitions after the line was printed
  };
  void print(Entry& entry);
  std::map<int, Entry*> by_order();

  const Clock& clock_;
  const Print print_;
  const Nanoseconds window_;
  const int most_lines_;
  std::map<std::string, Entry> entries_;
  int next_order_ = 0;
  int64_t beyond_ = 0;  // number of lines after the first most_lines
};

}  // namespace starling
