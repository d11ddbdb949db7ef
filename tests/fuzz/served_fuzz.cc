// Parses any bytes as a request to a data server or as its description. The parser must refuse them with a
// CommError, or return a value within the limits of data/served/served_protocol.h that is equal after writing
// and parsing again.
#include <string>

#include "starling/base/error.h"
#include "starling/data/served/served_protocol.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void read_request(FuzzInput& input) {
  const uint32_t tag = static_cast<uint32_t>(ServedTag::kDescribe) + input.byte() % 8;
  const std::string body = input.text(1 << 16);
  const ServedRequest request = decode_served(tag, std::as_bytes(std::span(body)), "peer");
  require_property(request.indices.size() <= kMaxReadSamples);
  const std::vector<std::byte> again = encode_served(request);
  require_property(decode_served(tag, again, "peer").indices == request.indices);
}

void read_description(FuzzInput& input) {
  const ServedDescription description = decode_description(input.text(1 << 16), "peer");
  for (const ServedPart& part : description.parts)
    require_property(part.size >= 0 && part.size <= kMaxServedSamples && part.record_bytes() > 0 &&
                     samples_a_request(part) > 0);
  require_property(decode_description(encode_served(description), "peer").parts.size() ==
                   description.parts.size());
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  try {
    if (input.byte() % 2 == 0)
      read_request(input);
    else
      read_description(input);
  } catch (const CommError&) {
  }
  return 0;
}
