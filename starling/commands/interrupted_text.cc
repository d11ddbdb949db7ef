#include "starling/commands/interrupted_text.h"

#include <fmt/format.h>

namespace starling {

std::string interrupted_text(const InterruptedLoop& loop) {
  const bool counts = !loop.unit.empty(), began = !counts || loop.done > 0;
  std::string text = "interrupted";
  if (!began) {
    text += fmt::format(" before the end of the first {}", loop.unit);
  } else if (counts) {
    text += fmt::format(" after {} {}", loop.unit, loop.done);
    if (loop.of > 0) text += fmt::format(" of {}", loop.of);
  }
  if (loop.checkpoint.empty())
    return text + fmt::format("; {}: with --checkpoint DIR, the same command would go on",
                              loop.saved.empty() ? "nothing was saved" : loop.saved);
  if (!began) return text + "; the same command starts anew";
  return text + fmt::format("; {} has the checkpoint, and the same command goes on", loop.checkpoint);
}

}  // namespace starling
