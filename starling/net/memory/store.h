// MemoryStore: the rendezvous store within one process, for tests that run ranks as threads. Shared by all of
// them.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "starling/net/store.h"

namespace starling {

class MemoryStore final : public Store {
 public:
  void put(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t delta) override;
  void put_fd(const std::string& key, int fd) override;
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, UniqueFd> fds_;
};

}  // namespace starling
