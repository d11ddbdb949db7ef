// CountingStore counts the calls to a store, for tests and measurements of what a rank asks of it.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/store/store.h"

namespace starling {

// CountingStore hands every call on to another store, which must outlive it. It is thread-safe.
class CountingStore final : public Store {
 public:
  explicit CountingStore(Store& store) : store_(store) {}

  // The number of calls so far. A wait that ended without a value counts, too.
  int64_t calls() const { return calls_.load(); }
  // The number of calls that found nothing: waits that ended, and absent keys. The number depends on timing.
  int64_t in_vain() const { return in_vain_.load(); }

  void put(const std::string& key, const std::string& value) override { return counted().put(key, value); }
  std::string put_if_absent(const std::string& key, const std::string& value) override {
    return counted().put_if_absent(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override {
    return unless_late([&] { return counted().get(key, timeout); });
  }
  std::optional<std::string> try_get(const std::string& key) override {
    auto value = counted().try_get(key);
    if (!value) ++in_vain_;
    return value;
  }
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override {
    return unless_late([&] { return counted().gather(prefix, count, timeout); });
  }
  std::map<std::string, std::string> list(const std::string& prefix) override {
    auto entries = counted().list(prefix);
    if (entries.empty()) ++in_vain_;
    return entries;
  }
  int64_t add(const std::string& key, int64_t delta) override { return counted().add(key, delta); }
  void put_fd(const std::string& key, int fd, int readers) override {
    return counted().put_fd(key, fd, readers);
  }
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override {
    return unless_late([&] { return counted().get_fd(key, timeout); });
  }
  void erase(const std::string& prefix) override { return counted().erase(prefix); }
  std::string address() const override { return store_.address(); }

 private:
  Store& counted() {
    ++calls_;
    return store_;
  }

  template <typename Call>
  std::invoke_result_t<Call> unless_late(const Call& call) {
    try {
      return call();
    } catch (const TimeoutError&) {
      ++in_vain_;
      throw;
    }
  }

  Store& store_;
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> in_vain_{0};
};

}  // namespace starling
