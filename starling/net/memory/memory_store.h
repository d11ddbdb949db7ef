// MemoryStore: the Store within one process, for tests that run ranks as threads. All threads share it.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "starling/net/store/store.h"
#include "starling/net/store/store_table.h"

namespace starling {

// MemoryStore keeps everything in maps. It is thread-safe.
class MemoryStore final : public Store {
 public:
  void put(const std::string& key, const std::string& value) override;
  std::string put_if_absent(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override;
  std::map<std::string, std::string> list(const std::string& prefix) override;
  int64_t add(const std::string& key, int64_t delta) override;
  void put_fd(const std::string& key, int fd, int readers) override;
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override;
  void erase(const std::string& prefix) override;
  std::string address() const override { return "memory"; }

 private:
  struct Waiters {
    std::condition_variable changed;
    int count = 0;
  };

  // Waits until present(). It is woken when `key` is put.
  template <typename Present>
  bool wait(std::unique_lock<std::mutex>& lock, const std::string& key,
            std::chrono::steady_clock::time_point until, const Present& present);
  void wake(const std::string& key);

  std::mutex mutex_;
  std::map<std::string, Waiters> waiters_;  // by the key that they wait for
  std::map<std::string, std::string> values_;
  std::map<std::string, StoredFd> fds_;
};

}  // namespace starling
