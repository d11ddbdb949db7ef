#include "starling/net/memory/store.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/net/store_table.h"

namespace starling {
namespace {

[[noreturn]] void throw_absent(const std::string& key, Milliseconds timeout) {
  throw TimeoutError(fmt::format("store: nobody put {} within {} ms", key, timeout.count()));
}

}  // namespace

void MemoryStore::put(const std::string& key, const std::string& value) {
  check_store_entry(key, value);
  std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return values_.contains(key); })) throw_absent(key, timeout);
  return values_.at(key);
}

std::optional<std::string> MemoryStore::try_get(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

int64_t MemoryStore::add(const std::string& key, int64_t delta) {
  check_store_entry(key, "");
  std::lock_guard lock(mutex_);
  const int64_t sum = add_to_number(key, values_[key], delta);
  values_[key] = fmt::format("{}", sum);
  changed_.notify_all();
  return sum;
}

void MemoryStore::put_fd(const std::string& key, int fd) {
  check_store_entry(key, "");
  UniqueFd copy = duplicate_fd(key, fd);
  std::lock_guard lock(mutex_);
  fds_[key] = std::move(copy);
  changed_.notify_all();
}

UniqueFd MemoryStore::get_fd(const std::string& key, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline, [&] { return fds_.contains(key); })) throw_absent(key, timeout);
  return duplicate_fd(key, fds_.at(key).get());
}

}  // namespace starling
