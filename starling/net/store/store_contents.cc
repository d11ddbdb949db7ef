#include "starling/net/store/store_contents.h"

#include <fmt/format.h>

#include <charconv>

#include "starling/base/error.h"

namespace starling {

bool StoreContents::has_room(const std::string& key) const {
  return values_.contains(key) || fds_.contains(key) || values_.size() + fds_.size() < max_keys_;
}

void StoreContents::put(const std::string& key, const std::string& value) {
  values_[key] = value;
}

StoreAnswer StoreContents::add(const StoreRequest& request) {
  int64_t delta = 0;
  const char* end = request.value.data() + request.value.size();
  const auto [stop, error] = std::from_chars(request.value.data(), end, delta);
  if (error != std::errc{} || stop != end)
    return {StoreStatus::kRefused, "store: the summand is not a number", {}};
  try {
    std::string& value = values_[request.key];
    value = fmt::format("{}", add_to_number(request.key, value, delta));
    return {StoreStatus::kOk, value, {}};
  } catch (const CommError& e) {
    return {StoreStatus::kRefused, e.what(), {}};
  }
}

StoreAnswer StoreContents::keep_fd(const StoreRequest& request, UniqueFd passed) {
  if (!passed.valid())
    return {StoreStatus::kRefused,
            "store: no descriptor came along; descriptors pass over Unix sockets only",
            {}};
  int readers = 0;
  const char* end = request.value.data() + request.value.size();
  const auto [stop, error] = std::from_chars(request.value.data(), end, readers);
  if (error != std::errc{} || stop != end || readers < 0)
    return {StoreStatus::kRefused, "store: the number of readers is not a number", {}};
  fds_[request.key] = {std::move(passed), readers};
  return {};
}

std::optional<StoreAnswer> StoreContents::hand_out_fd(const std::string& key) {
  const auto found = fds_.find(key);
  if (found == fds_.end()) return std::nullopt;
  StoredFd& stored = found->second;
  if (stored.readers != 1) {
    UniqueFd copy = duplicate_fd(key, stored.fd.get());  // throws if this process has no descriptors left
    if (stored.readers > 0) --stored.readers;
    return StoreAnswer{StoreStatus::kOk, "", std::move(copy)};
  }
  StoreAnswer last{StoreStatus::kOk, "", std::move(stored.fd)};
  fds_.erase(found);
  return last;
}

void StoreContents::erase(const std::string& prefix) {
  auto end = values_.lower_bound(prefix);
  const auto begin = end;
  while (end != values_.end() && end->first.starts_with(prefix)) ++end;
  values_.erase(begin, end);
  std::erase_if(fds_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
}

std::optional<StoreAnswer> StoreContents::gather(StoreRequest& request) const {
  int first = 0, count = 0;
  const char* const begin = request.value.data();
  const char* const end = begin + request.value.size();
  const auto [after_first, bad_first] = std::from_chars(begin, end, first);
  const char* const second = after_first == end ? end : after_first + 1;
  const auto [after_count, bad_count] = std::from_chars(second, end, count);
  if (bad_first != std::errc{} || bad_count != std::errc{} || after_count != end || first < 0 ||
      first >= count)
    return StoreAnswer{StoreStatus::kRefused, "store: a gather says which keys it wants: FIRST COUNT", {}};
  const auto entry = [&](int number) { return values_.find(fmt::format("{}{}", request.key, number)); };
  for (; request.found < count; ++request.found)
    if (entry(request.found) == values_.end()) return std::nullopt;
  StoreAnswer answer;
  for (int number = first; number < count; ++number) {
    const auto found = entry(number);
    if (found == values_.end()) {  // it was erased meanwhile
      request.found = number;
      return std::nullopt;
    }
    if (!pack_text(answer.body, found->second)) break;
  }
  return answer;
}

StoreAnswer StoreContents::list(const StoreRequest& request) const {
  StoreAnswer answer;
  auto entry = request.value.empty() ? values_.lower_bound(request.key) : values_.upper_bound(request.value);
  for (; entry != values_.end() && entry->first.starts_with(request.key); ++entry) {
    const size_t before = answer.body.size();
    if (pack_text(answer.body, entry->first) && pack_text(answer.body, entry->second)) continue;
    answer.body.resize(before);
    answer.status = StoreStatus::kMore;
    break;
  }
  return answer;
}

std::optional<StoreAnswer> StoreContents::answer(StoreRequest& request, UniqueFd passed) {
  const bool stores = request.op == StoreOp::kPut || request.op == StoreOp::kPutIfAbsent ||
                      request.op == StoreOp::kAdd || request.op == StoreOp::kPutFd;
  if (stores && !has_room(request.key))
    return StoreAnswer{StoreStatus::kRefused, fmt::format("the store is full ({} keys)", max_keys_), {}};
  switch (request.op) {
    case StoreOp::kPut:
      put(request.key, request.value);
      return StoreAnswer{};
    case StoreOp::kPutIfAbsent:
      return StoreAnswer{StoreStatus::kOk, put_if_absent(request.key, request.value), {}};
    case StoreOp::kErase:
      erase(request.key);
      return StoreAnswer{};
    case StoreOp::kAdd:
      return add(request);
    case StoreOp::kPutFd:
      return keep_fd(request, std::move(passed));
    case StoreOp::kGet:
    case StoreOp::kTryGet: {
      const auto found = values_.find(request.key);
      if (found != values_.end()) return StoreAnswer{StoreStatus::kOk, found->second, {}};
      if (request.op == StoreOp::kTryGet) return StoreAnswer{StoreStatus::kAbsent, "", {}};
      return std::nullopt;
    }
    case StoreOp::kGather:
      return gather(request);
    case StoreOp::kList:
      return list(request);
    case StoreOp::kGetFd:
      return hand_out_fd(request.key);
    default:
      return StoreAnswer{
          StoreStatus::kRefused,
          "the store does not know this kind of request; use one version of Starling on all hosts",
          {}};
  }
}

}  // namespace starling
