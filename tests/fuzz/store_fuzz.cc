// Parses requests to the store with any tag and any bytes. The parser must refuse a request with a CommError.
// Otherwise the request must give the same bytes when it is written again, and the store must answer it
// within its limits.
#include <string>

#include "starling/base/error.h"
#include "starling/net/store/store_contents.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  StoreContents contents(8);
  while (!input.empty()) {
    const uint32_t tag = input.byte() % 14;
    const std::string body = input.text(input.number());
    try {
      StoreRequest request = decode_request(tag, body);
      require_property(encode_request_body(request) == body);
      const auto answer = contents.answer(request, UniqueFd());
      require_property(!answer || answer->body.size() <= kMaxControlBytes);
    } catch (const CommError&) {
    }
  }
  return 0;
}
