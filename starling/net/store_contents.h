// What a StoreServer holds, and what it answers: no sockets, no threads.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "starling/base/unique_fd.h"
#include "starling/net/store_protocol.h"

namespace starling {

struct StoreAnswer {
  StoreStatus status = StoreStatus::kOk;
  std::string body;
  int fd = -1;  // to be sent along; owned by the contents
};

class StoreContents {
 public:
  explicit StoreContents(size_t max_keys) : max_keys_(max_keys) {}

  // Carries out a request that needs no waiting; `passed` is the descriptor that came along, if any. Nothing for a get
  // or get_fd whose key is absent: ask again after a change.
  std::optional<StoreAnswer> answer(const StoreRequest& request, UniqueFd passed);
  void put(const std::string& key, const std::string& value);
  void put_if_absent(const std::string& key, const std::string& value) { values_.emplace(key, value); }

 private:
  StoreAnswer add(const StoreRequest& request);
  bool has_room(const std::string& key) const;

  size_t max_keys_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, UniqueFd> fds_;
};

}  // namespace starling
