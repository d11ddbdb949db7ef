#include "starling/net/memory/memory_store.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/net/store/store_table.h"

namespace starling {
namespace {

[[noreturn]] void throw_absent(const std::string& key, Milliseconds timeout, int number = -1) {
  throw TimeoutError(fmt::format("store: key {} was not set within {} ms", key, timeout.count()), number);
}

}  // namespace

template <typename Present>
bool MemoryStore::wait(std::unique_lock<std::mutex>& lock, const std::string& key,
                       std::chrono::steady_clock::time_point until, const Present& present) {
  if (present()) return true;
  Waiters& waiters = waiters_[key];
  ++waiters.count;
  const bool found = waiters.changed.wait_until(lock, until, present);
  if (--waiters.count == 0) waiters_.erase(key);
  return found;
}

void MemoryStore::wake(const std::string& key) {
  const auto found = waiters_.find(key);
  if (found != waiters_.end()) found->second.changed.notify_all();
}

void MemoryStore::put(const std::string& key, const std::string& value) {
  check_store_entry(key, value);
  std::lock_guard lock(mutex_);
  values_[key] = value;
  wake(key);
}

std::string MemoryStore::put_if_absent(const std::string& key, const std::string& value) {
  check_store_entry(key, value);
  std::lock_guard lock(mutex_);
  const std::string kept = values_.emplace(key, value).first->second;
  wake(key);
  return kept;
}

void MemoryStore::erase(const std::string& prefix) {
  const auto begins = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  std::lock_guard lock(mutex_);
  std::erase_if(values_, begins);
  std::erase_if(fds_, begins);
}

std::string MemoryStore::get(const std::string& key, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!wait(lock, key, deadline, [&] { return values_.contains(key); })) throw_absent(key, timeout);
  return values_.at(key);
}

std::optional<std::string> MemoryStore::try_get(const std::string& key) {
  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> MemoryStore::gather(const std::string& prefix, int count, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::vector<std::string> values;
  values.reserve(static_cast<size_t>(count));
  std::unique_lock lock(mutex_);
  while (static_cast<int>(values.size()) < count) {
    const std::string key = fmt::format("{}{}", prefix, values.size());
    if (!wait(lock, key, deadline, [&] { return values_.contains(key); }))
      throw_absent(key, timeout, static_cast<int>(values.size()));
    values.push_back(values_.at(key));
  }
  return values;
}

std::map<std::string, std::string> MemoryStore::list(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  auto end = values_.lower_bound(prefix);
  const auto begin = end;
  while (end != values_.end() && end->first.starts_with(prefix)) ++end;
  return {begin, end};
}

int64_t MemoryStore::add(const std::string& key, int64_t delta) {
  check_store_entry(key, "");
  std::lock_guard lock(mutex_);
  const int64_t sum = add_to_number(key, values_[key], delta);
  values_[key] = fmt::format("{}", sum);
  wake(key);
  return sum;
}

void MemoryStore::put_fd(const std::string& key, int fd, int readers) {
  check_store_entry(key, "");
  UniqueFd copy = duplicate_fd(key, fd);
  std::lock_guard lock(mutex_);
  fds_[key] = {std::move(copy), readers};
  wake(key);
}

UniqueFd MemoryStore::get_fd(const std::string& key, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!wait(lock, key, deadline, [&] { return fds_.contains(key); })) throw_absent(key, timeout);
  StoredFd& stored = fds_.at(key);
  UniqueFd copy = duplicate_fd(key, stored.fd.get());
  const bool last = stored.readers == 1;
  if (stored.readers > 0) --stored.readers;
  if (last) fds_.erase(key);
  return copy;
}

}  // namespace starling
