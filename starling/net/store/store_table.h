// Limits and functions that all implementations of the store share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "starling/base/unique_fd.h"

namespace starling {

// The longest key and the longest value.
constexpr size_t kMaxStoreKeyBytes = 512;
constexpr size_t kMaxStoreValueBytes = 64 * 1024;

// StoredFd is a descriptor in a store.
struct StoredFd {
  UniqueFd fd;
  int readers = 0;  // how many times it is still to be read; 0: it is kept
};

// Checks an entry. Errors: CommError that names the key if it is empty or too long, or if the value is too
// long.
void check_store_entry(const std::string& key, const std::string& value);

// Returns the decimal number in `value` ("" is 0) plus `delta`. Errors: CommError if `value` is not a number
// or the sum does not fit.
int64_t add_to_number(const std::string& key, const std::string& value, int64_t delta);

// Returns a duplicate of `fd` with close-on-exec set. Errors: CommError that names `key` if the system
// refuses.
UniqueFd duplicate_fd(const std::string& key, int fd);

}  // namespace starling
