#include "starling/run/ranks/broadcast_text.h"

#include <cstdint>

namespace starling {

std::string broadcast_text(Group& group, std::string text) {
  if (group.size() == 1) return text;
  auto size = static_cast<int64_t>(text.size());
  broadcast(group, &size, 1, DataType::kInt64, 0);
  text.resize(static_cast<size_t>(size));
  if (size > 0) broadcast(group, text.data(), text.size(), DataType::kUint8, 0);
  return text;
}

}  // namespace starling
