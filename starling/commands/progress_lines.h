// Chooses the parts of a loop, such as sweeps, that a command prints a line about.
#pragma once

#include <cstdint>

#include "starling/base/clock.h"

namespace starling {

// ProgressLines leaves about 20 lines of a loop of any length: that of its first part, and evenly spread
// ones. A slow loop has more lines, because a line is due when the last one is 10 s old.
class ProgressLines {
 public:
  // parts: of the whole loop. all: every part has a line. The clock must outlive this object.
  ProgressLines(const Clock& clock, int64_t parts, bool all);
  // Returns whether the command prints a line about a part, which counts from 1. Must be called for each part
  // in turn. wanted: the line has news, and is printed in any case.
  bool is_due(int64_t part, bool wanted = false);

 private:
  const Clock& clock_;
  const int64_t parts_, every_;
  bool first_ = true;
  Nanoseconds last_{};  // when the last line was due
};

}  // namespace starling
