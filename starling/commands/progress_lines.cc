#include "starling/commands/progress_lines.h"

#include <chrono>

namespace starling {
namespace {

constexpr int64_t kLinesOfLoop = 20;
constexpr Nanoseconds kLongestSilence = std::chrono::seconds(10);

}  // namespace

ProgressLines::ProgressLines(const Clock& clock, int64_t parts, bool all)
    : clock_(clock),
      parts_(parts),
      every_(all || parts <= kLinesOfLoop ? 1 : (parts + kLinesOfLoop - 1) / kLinesOfLoop) {}

bool ProgressLines::is_due(int64_t part, bool wanted) {
  const Nanoseconds now = clock_.now();
  if (!(first_ || wanted || part % every_ == 0 || part == parts_ || now - last_ >= kLongestSilence))
    return false;
  first_ = false;
  last_ = now;
  return true;
}

}  // namespace starling
