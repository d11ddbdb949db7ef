#include "starling/net/store/store_table.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <system_error>

#include "starling/base/error.h"

namespace starling {

void check_store_entry(const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxStoreKeyBytes)
    throw CommError(
        fmt::format("store: a key of {} bytes; keys have 1 to {} bytes", key.size(), kMaxStoreKeyBytes));
  if (value.size() > kMaxStoreValueBytes)
    throw CommError(
        fmt::format("store: the value of {} has {} bytes, at most {} are allowed; pass larger data by "
                    "a window or a message",
                    key, value.size(), kMaxStoreValueBytes));
}

int64_t add_to_number(const std::string& key, const std::string& value, int64_t delta) {
  int64_t number = 0;
  if (!value.empty()) {
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc{} || stop != end)
      throw CommError(fmt::format("store: {} does not hold a number", key));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, delta, &sum))
    throw CommError(fmt::format("store: {} + {} under {} is out of range", number, delta, key));
  return sum;
}

UniqueFd duplicate_fd(const std::string& key, int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid())
    throw CommError(fmt::format("store: cannot duplicate descriptor {} for {}: {}", fd, key,
                                std::generic_category().message(errno)));
  return copy;
}

}  // namespace starling
