#include "starling/plan/memory.h"

namespace starling {

ElementBytes element_bytes(Precision precision, int states) {
  switch (precision) {
    case Precision::kBf16:
      return {2, 2, 4.0 + 4.0 * states};
    case Precision::kFp64:
      return {8, 8, 8.0 * states};
    default:
      return {4, 4, 4.0 * states};
  }
}

StateBytes zero_state_bytes(const ElementBytes& element, double parameters, int64_t ranks, int stage) {
  const double share = parameters / static_cast<double>(ranks);
  StateBytes bytes;
  bytes.parameters = element.parameter * (stage >= 3 ? share : parameters);
  bytes.gradients = element.gradient * (stage >= 2 ? share : parameters);
  bytes.optimizer = element.optimizer * (stage >= 1 ? share : parameters);
  return bytes;
}

double zero_traffic_elements(double parameters, int64_t ranks, int stage, int64_t parts) {
  const auto n = static_cast<double>(ranks), k = static_cast<double>(parts);
  const double moves = stage >= 3 ? 3 * k : stage == 2 ? 1 + k : 2;
  return moves * parameters * (n - 1) / n;
}

}  // namespace starling
