#include "starling/comm/inbox.h"

#include <fmt/format.h>
#include <unistd.h>

#include <new>

#include "starling/base/error.h"

namespace starling {

uint64_t longest_inbox_message() {
  static const auto bytes =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
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
