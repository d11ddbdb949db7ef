// What store client and server say to each other. After the handshake every request and every answer is one control
// frame (net/control_frame.h), authenticated and counted:
//
//   request   tag = StoreOp      body = timeout in ms u32 | key length u16 | key | value
//   answer    tag = StoreStatus  body = the value, or the reason for people
//
// add: the value is the summand in decimal; the answer the sum. put_fd: the descriptor travels with the request's first
// byte; get_fd: with the answer's. One request at a time a connection.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "starling/net/endpoint.h"
#include "starling/net/store_table.h"

namespace starling {

enum class StoreOp : uint32_t { kPut = 1, kGet, kTryGet, kAdd, kPutFd, kGetFd, kAnnounce, kGoodbye };
enum class StoreStatus : uint32_t { kOk = 1, kAbsent, kTimeout, kRefused };

struct StoreRequest {
  StoreOp op = StoreOp::kPut;
  uint32_t timeout_ms = 0;
  std::string key;
  std::string value;
};

static_assert(6 + kMaxStoreKeyBytes + kMaxStoreValueBytes <= kMaxControlBytes);

std::string encode_request_body(const StoreRequest& request);
// CommError where the body is not well formed or exceeds the store's limits.
StoreRequest decode_request(uint32_t tag, std::string_view body);

}  // namespace starling
