// Requests to the store, each with any tag and any bytes: refused with a CommError, or one that writes back as it was and that
// the contents answer within their limits.
#include <string>

#include "starling/base/error.h"
#include "starling/net/store_contents.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  StoreContents contents(8);
  while (!input.empty()) {
    const uint32_t tag = input.byte() % 12;
    const std::string body = input.text(input.number());
    try {
      const StoreRequest request = decode_request(tag, body);
      require_property(encode_request_body(request) == body);
      const auto answer = contents.answer(request, UniqueFd());
      require_property(!answer || answer->body.size() <= kMaxStoreValueBytes);
    } catch (const CommError&) {
    }
  }
  return 0;
}
