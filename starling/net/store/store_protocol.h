// The protocol between store client and server. After the handshake every request and every answer is one
// control frame (net/stream/control_frame.h), which is authenticated and numbered. Integers are
// little-endian:
//
//   request   tag = StoreOp      body = timeout in ms u32 | key length u16 | key | value
//   answer    tag = StoreStatus  body = the value, or the reason of a refusal as text
//
// A connection carries one request at a time. Key, value and answer mean:
//
// - put_if_absent: the answer is the value that the key has afterwards.
// - erase: the key is a prefix.
// - add: the value is the summand in decimal, and the answer is the sum.
// - put_fd: the descriptor travels with the first byte of the request. The value is the number of its readers
//   in decimal. If it is 0, the server keeps the descriptor.
// - get_fd: the descriptor travels with the first byte of the answer.
// - announce: the value is the rank in decimal.
// - goodbye: key and value mean nothing.
// - gather: the key is a prefix, and the value is "FIRST COUNT". The server answers when the keys prefix0, …,
//   prefix<COUNT-1> are all there. The answer has the values from FIRST on, as many as have room (pack_text).
//   If the time ends before, the answer is the number of the first absent key.
// - list: the key is a prefix. The value is the last key that the client already has, or empty. The answer
//   has the keys with the prefix that follow that key, each with its value behind it. kMore says that further
//   keys had no room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "starling/net/endpoint.h"
#include "starling/net/store/store_table.h"

namespace starling {

// StoreOp says what a request asks for.
enum class StoreOp : uint32_t {
  kPut = 1,
  kGet,
  kTryGet,
  kAdd,
  kPutFd,
  kGetFd,
  kAnnounce,
  kGoodbye,
  kPutIfAbsent,
  kErase,
  kGather,
  kList
};
// StoreStatus says how a request ended. kAbsent is the answer of try_get for a missing key.
enum class StoreStatus : uint32_t { kOk = 1, kAbsent, kTimeout, kRefused, kMore };

// StoreRequest is a request.
struct StoreRequest {
  StoreOp op = StoreOp::kPut;
  uint32_t timeout_ms = 0;
  std::string key;
  std::string value;
  int found = 0;  // only in the server: how many keys of a gather are known to be there
};

static_assert(6 + kMaxStoreKeyBytes + kMaxStoreValueBytes <= kMaxControlBytes);

// Appends a text with its length (u32) to `body`. Returns false, and appends nothing, if the body would not
// fit into a frame then.
bool pack_text(std::string& body, std::string_view text);
// Returns the texts that pack_text() has put into a body. Errors: CommError if the body is malformed.
std::vector<std::string> unpack_texts(std::string_view body);

// Returns the body of a request's frame.
std::string encode_request_body(const StoreRequest& request);
// Returns the request in a frame. Errors: CommError if the body is malformed or exceeds the store's limits.
StoreRequest decode_request(uint32_t tag, std::string_view body);

}  // namespace starling
