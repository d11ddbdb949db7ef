// StoreContents: the keys and values of a StoreServer, and its answers. It uses no sockets and no threads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "starling/base/unique_fd.h"
#include "starling/net/store/store_protocol.h"

namespace starling {

// StoreAnswer is the answer to a request.
struct StoreAnswer {
  StoreStatus status = StoreStatus::kOk;
  std::string body;
  UniqueFd fd;  // a descriptor to send along; invalid: none
};

// StoreContents holds at most max_keys keys.
class StoreContents {
 public:
  // `max_keys` limits the number of values and descriptors together.
  explicit StoreContents(size_t max_keys) : max_keys_(max_keys) {}

  // Answers a request. `passed` is the descriptor that came along, if any. Returns nothing for a get, gather
  // or get_fd whose key is absent. The caller asks again after a change, with the same StoreRequest object,
  // because a gather remembers in it which keys were found. Errors: CommError if the process has no
  // descriptor left for a duplicate.
  std::optional<StoreAnswer> answer(StoreRequest& request, UniqueFd passed);
  // Sets a value without checking the limit of keys.
  void put(const std::string& key, const std::string& value);
  // Sets a value without checking the limit, unless the key is there already. Returns the value under the
  // key.
  const std::string& put_if_absent(const std::string& key, const std::string& value) {
    return values_.emplace(key, value).first->second;
  }
  // The number of values and descriptors that it holds.
  size_t size() const { return values_.size() + fds_.size(); }

 private:
  StoreAnswer keep_fd(const StoreRequest& request, UniqueFd passed);
  std::optional<StoreAnswer> hand_out_fd(const std::string& key);
  std::optional<StoreAnswer> gather(StoreRequest& request) const;
  StoreAnswer list(const StoreRequest& request) const;
  void erase(const std::string& prefix);
  StoreAnswer add(const StoreRequest& request);
  bool has_room(const std::string& key) const;

  size_t max_keys_;
  std::map<std::string, std::string> values_;  // ordered, for keys with a common beginning
  std::unordered_map<std::string, StoredFd> fds_;
};

}  // namespace starling
