#include "starling/data/read_stall.h"

#include <fmt/format.h>

namespace starling {

std::string stall_text(int rank, const ReadStall& stall) {
  if (stall.over) {
    std::string text = fmt::format("rank {} has the data of step {} after {:.1f} s of waiting", rank,
                                   stall.step, stall.waited_s);
    if (stall.bridging > 0)
      text += fmt::format("; --set data.prefetch={} outlasts such a wait at the present speed of the steps",
                          stall.bridging);
    return text;
  }
  return fmt::format(
      "rank {} has waited {:.1f} s for the data of step {}: {} reads {} (positions {} to {} of epoch {}). "
      "Training continues when the read ends. Check the disk or the network file system. Give --set "
      "data.prefetch=N to read more than {} batches ahead, and --set data.workers=N to read with more than "
      "{} {}",
      rank, stall.waited_s, stall.step, stall.source, stall.place.empty() ? "its samples" : stall.place,
      stall.first, stall.first + stall.samples - 1, stall.epoch, stall.prefetch, stall.workers,
      stall.workers == 1 ? "thread" : "threads");
}

}  // namespace starling
