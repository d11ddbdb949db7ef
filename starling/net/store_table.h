// What the store's implementations share: limits, and the arithmetic of add().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

constexpr size_t kMaxStoreKeyBytes = 512;
constexpr size_t kMaxStoreValueBytes = 64 * 1024;

// CommError naming the key where it is empty or too long, or the value is too long.
void check_store_entry(const std::string& key, const std::string& value);

// The decimal number in `value` ("" is 0) plus delta; CommError if it is not a number or the sum does not
// fit.
int64_t add_to_number(const std::string& key, const std::string& value, int64_t delta);

// A duplicate of `fd` with close-on-exec set; CommError naming `key` if it cannot be made.
UniqueFd duplicate_fd(const std::string& key, int fd);

}  // namespace starling
