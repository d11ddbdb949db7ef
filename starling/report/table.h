// A comparison as a table of text, for the terminal and the report.
#pragma once

#include <string>
#include <vector>

#include "starling/report/comparison.h"

namespace starling {

// A table of text.
struct Table {
  std::vector<std::string> head;
  // One row for each run, in their order. The first cell holds the run's flags. The row of a run that failed
  // has two cells: its flags and the reason.
  std::vector<std::vector<std::string>> rows;
};

// Returns the table of a comparison. The columns of the target are left out if there is no target, and that
// of the accuracy if no run has one.
Table table_of(const Comparison& comparison);

// Returns the target as text, such as "accuracy 95.0 %" or "loss 0.1".
std::string target_text(const Target& target);

}  // namespace starling
