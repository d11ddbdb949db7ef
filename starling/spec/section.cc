#include "starling/spec/section.h"

namespace starling {

std::string_view title_of(Section section) {
  switch (section) {
    case Section::kModel:
      return "Model";
    case Section::kData:
      return "Data";
    case Section::kOptimizer:
      return "Optimizer and schedule";
    case Section::kTraining:
      return "Training";
    case Section::kRanks:
      return "Ranks and hosts";
    case Section::kParallel:
      return "Parallel algorithm";
    case Section::kNetwork:
      return "Communication";
    case Section::kEmulation:
      return "Emulation";
    case Section::kRun:
      return "Run folder, checkpoints and failures";
    case Section::kVerify:
      return "Verification";
  }
  return "";
}

}  // namespace starling
