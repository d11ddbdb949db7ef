#include "starling/net/store_protocol.h"

#include <fmt/format.h>

#include <algorithm>

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

StoreRequest decode_request(uint32_t tag, std::string_view body) {
  if (tag < static_cast<uint32_t>(StoreOp::kPut) || tag > static_cast<uint32_t>(StoreOp::kGoodbye))
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

std::string seal_frame(const Digest& key, uint64_t sequence, uint32_t tag, std::string_view body) {
  const auto header = encode_frame_header({{tag, body.size(), MessageKind::kControl}, sequence});
  std::string frame;
  frame.reserve(kFrameHeaderBytes + body.size() + kMacBytes);
  append(frame, header);
  frame += body;
  append(frame, hmac_sha256(key, {header, bytes_of(body)}));
  return frame;
}

std::optional<OpenedFrame> open_frame(const Digest& key, uint64_t sequence, std::string_view input,
                                      const std::string& peer) {
  if (input.size() < kFrameHeaderBytes) return std::nullopt;
  const ConstBytes bytes = bytes_of(input);
  const FrameHeader header = decode_frame_header(bytes.first<kFrameHeaderBytes>(), sequence, peer);
  if (header.info.kind != MessageKind::kControl)
    throw CommError(peer + ": a data frame where the store speaks");
  const size_t total = framed_bytes(MessageKind::kControl, header.info.bytes);
  if (input.size() < total) return std::nullopt;
  const ConstBytes body = bytes.subspan(kFrameHeaderBytes, header.info.bytes);
  const Digest mac = hmac_sha256(key, {bytes.first(kFrameHeaderBytes), body});
  if (!equal_in_constant_time(mac, bytes.subspan(kFrameHeaderBytes + body.size(), kMacBytes)))
    throw CommError(peer + ": a store message is not authentic; someone tampers with the connection");
  return OpenedFrame{header.info.tag, std::string(input.substr(kFrameHeaderBytes, body.size())), total};
}

}  // namespace starling
