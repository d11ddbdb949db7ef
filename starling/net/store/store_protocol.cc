#include "starling/net/store/store_protocol.h"

#include <fmt/format.h>

#include <array>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr size_t kFixedBytes = 6;

ConstBytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

void append(std::string& to, ConstBytes bytes) {
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

std::string encode_request_body(const StoreRequest& request) {
  std::array<std::byte, kFixedBytes> fixed;
  store_le<uint32_t>(&fixed[0], request.timeout_ms);
  store_le<uint16_t>(&fixed[4], static_cast<uint16_t>(request.key.size()));
  std::string body;
  body.reserve(kFixedBytes + request.key.size() + request.value.size());
  append(body, fixed);
  return body + request.key + request.value;
}

bool pack_text(std::string& body, std::string_view text) {
  std::array<std::byte, sizeof(uint32_t)> length;
  if (body.size() + length.size() + text.size() > kMaxControlBytes) return false;
  store_le<uint32_t>(length.data(), static_cast<uint32_t>(text.size()));
  append(body, length);
  body += text;
  return true;
}

std::vector<std::string> unpack_texts(std::string_view body) {
  std::vector<std::string> texts;
  while (!body.empty()) {
    if (body.size() < sizeof(uint32_t)) throw CommError("store: a list ends within a length");
    const size_t length = load_le<uint32_t>(bytes_of(body).data());
    body.remove_prefix(sizeof(uint32_t));
    if (length > body.size()) throw CommError("store: a list ends within a text");
    texts.emplace_back(body.substr(0, length));
    body.remove_prefix(length);
  }
  return texts;
}

StoreRequest decode_request(uint32_t tag, std::string_view body) {
  if (tag < static_cast<uint32_t>(StoreOp::kPut) || tag > static_cast<uint32_t>(StoreOp::kList))
    throw CommError(fmt::format("store: unknown request {}", tag));
  if (body.size() < kFixedBytes) throw CommError("store: a request without its fixed part");
  const ConstBytes bytes = bytes_of(body);
  const size_t key_bytes = load_le<uint16_t>(&bytes[4]);
  if (key_bytes > body.size() - kFixedBytes) throw CommError("store: a request shorter than its key");
  StoreRequest request{static_cast<StoreOp>(tag), load_le<uint32_t>(&bytes[0]),
                       std::string(body.substr(kFixedBytes, key_bytes)),
                       std::string(body.substr(kFixedBytes + key_bytes))};
  check_store_entry(request.key, request.value);
  return request;
}

}  // namespace starling
