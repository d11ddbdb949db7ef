#include "starling/run/message/plain_error.h"

#include <string>

namespace starling {

Error plain_error(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  const bool memory = text.find("allocate memory") != std::string::npos ||
                      text.find("not enough memory") != std::string::npos;
  if (!memory) return Error(ErrorCode::kInternal, text);
  return Error(
      ErrorCode::kMemory,
      "out of memory: " + text + "; use a smaller --global-batch or model, or fewer ranks on this host");
}

}  // namespace starling
