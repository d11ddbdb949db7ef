#include "starling/net/store_contents.h"

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
  if (error != std::errc{} || stop != end) return {StoreStatus::kRefused, "store: the summand is no number"};
  try {
    std::string& value = values_[request.key];
    value = fmt::format("{}", add_to_number(request.key, value, delta));
    return {StoreStatus::kOk, value};
  } catch (const CommError& e) {
    return {StoreStatus::kRefused, e.what()};
  }
}

std::optional<StoreAnswer> StoreContents::answer(const StoreRequest& request, UniqueFd passed) {
  const bool stores =
      request.op == StoreOp::kPut || request.op == StoreOp::kAdd || request.op == StoreOp::kPutFd;
  if (stores && !has_room(request.key))
    return StoreAnswer{StoreStatus::kRefused, fmt::format("store: it is full ({} keys)", max_keys_)};
  switch (request.op) {
    case StoreOp::kPut:
      put(request.key, request.value);
      return StoreAnswer{};
    case StoreOp::kAdd:
      return add(request);
    case StoreOp::kPutFd:
      if (!passed.valid())
        return StoreAnswer{StoreStatus::kRefused,
                           "store: no descriptor came along; descriptors pass over Unix sockets only"};
      fds_[request.key] = std::move(passed);
      return StoreAnswer{};
    case StoreOp::kGet:
    case StoreOp::kTryGet: {
      const auto found = values_.find(request.key);
      if (found != values_.end()) return StoreAnswer{StoreStatus::kOk, found->second};
      if (request.op == StoreOp::kTryGet) return StoreAnswer{StoreStatus::kAbsent, ""};
      return std::nullopt;
    }
    case StoreOp::kGetFd: {
      const auto found = fds_.find(request.key);
      if (found == fds_.end()) return std::nullopt;
      return StoreAnswer{StoreStatus::kOk, "", found->second.get()};
    }
    default:
      return StoreAnswer{StoreStatus::kRefused, "store: not a request about a key"};
  }
}

}  // namespace starling
