#include "starling/codec/message_bytes.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

void bad_message(const std::string& codec, size_t bytes, size_t count, const std::string& what) {
  throw CommError(
      fmt::format("codec {}: a message of {} bytes for {} values {}; all ranks need the same --codec and the "
                  "same version",
                  codec, bytes, count, what));
}

void check_length(const std::string& codec, size_t bytes, size_t expected, size_t count) {
  if (bytes != expected) bad_message(codec, bytes, count, fmt::format("should have {} bytes", expected));
}

}  // namespace starling
