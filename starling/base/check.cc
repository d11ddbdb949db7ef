#include "starling/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace starling {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: bug in Starling: CHECK(%s) failed%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::abort();
}

}  // namespace starling
