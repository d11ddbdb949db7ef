// A comparison as a table of words, for the terminal and the page.
#pragma once

#include <string>
#include <vector>

#include "starling/report/comparison.h"

namespace starling {

struct Table {
  std::vector<std::string> head;
  // As many cells as the head; of a run that failed two, its name and why.
  std::vector<std::vector<std::string>> rows;
};

Table table_of(const Comparison& comparison);

// "accuracy 95.0 %" or "loss 0.1".
std::string target_text(const Target& target);

}  // namespace starling
