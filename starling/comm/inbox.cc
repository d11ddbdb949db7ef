#include "starling/comm/inbox.h"

#include <fmt/format.h>

#include <new>

#include "starling/base/error.h"
#include "starling/base/physical_memory.h"

namespace starling {

uint64_t longest_inbox_message() {
  static const uint64_t bytes = physical_memory();
  return bytes / 2;
}

InboxMessage make_inbox_message(uint32_t tag, uint64_t bytes, const std::string& sender, int rank) {
  try {
    if (bytes <= longest_inbox_message()) return {tag, std::vector<std::byte>(bytes)};
  } catch (const std::bad_alloc&) {  // reported below
  }
  throw CommError(
      fmt::format("{} sends {} bytes with tag {}, for which this rank has no memory; call recv() before, "
                  "or send less at once",
                  sender, bytes, tag),
      rank);
}

}  // namespace starling
