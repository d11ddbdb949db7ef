// Parses requests to the store with any tag and any bytes. The parser must refuse a request with a CommError.
// Otherwise the request must give the same bytes when it is written again, and the store must answer it
// within its limits. The lists of the store, which may take several answers, must name each key once and in
// order.
#include <set>
#include <string>

#include "starling/base/error.h"
#include "starling/net/store/store_contents.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

constexpr size_t kMaxKeys = 8;

// The keys that the store has, as this file counts them.
using Keys = std::set<std::string>;

void note_change(Keys& keys, const StoreRequest& request, const StoreAnswer& answer) {
  if (answer.status != StoreStatus::kOk) return;
  if (request.op == StoreOp::kPut || request.op == StoreOp::kPutIfAbsent || request.op == StoreOp::kAdd)
    keys.insert(request.key);
  if (request.op == StoreOp::kErase)
    std::erase_if(keys, [&](const std::string& key) { return key.starts_with(request.key); });
  require_property(keys.size() <= kMaxKeys);
}

// Reads a list to its end, from the key in `request` on.
void read_list(StoreContents& contents, const Keys& keys, StoreRequest request) {
  auto expected = request.value.empty() ? keys.lower_bound(request.key) : keys.upper_bound(request.value);
  for (bool more = true; more;) {
    const auto answer = contents.answer(request, UniqueFd());
    require_property(answer.has_value() && answer->body.size() <= kMaxControlBytes);
    more = answer->status == StoreStatus::kMore;
    const std::vector<std::string> texts = unpack_texts(answer->body);
    require_property(texts.size() % 2 == 0 && (!more || !texts.empty()));
    for (size_t i = 0; i < texts.size(); i += 2) {
      require_property(expected != keys.end() && texts[i] == *expected);
      StoreRequest get{StoreOp::kTryGet, 0, texts[i], ""};
      require_property(contents.answer(get, UniqueFd())->body == texts[i + 1]);
      request.value = texts[i];
      ++expected;
    }
  }
  require_property(expected == keys.end() || !expected->starts_with(request.key));
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  StoreContents contents(kMaxKeys);
  Keys keys;
  while (!input.empty()) {
    const uint8_t first = input.byte();
    const uint32_t tag = first % 14;
    std::string body = input.text(input.number());
    // Two of the longest values do not fit into one answer.
    if (first >= 128) body.append(size_t{input.byte()} * 257, 'v');
    try {
      StoreRequest request = decode_request(tag, body);
      require_property(encode_request_body(request) == body);
      if (request.op == StoreOp::kList) {
        read_list(contents, keys, request);
        continue;
      }
      const auto answer = contents.answer(request, UniqueFd());
      if (!answer) continue;
      require_property(answer->body.size() <= kMaxControlBytes);
      note_change(keys, request, *answer);
      if (request.op == StoreOp::kGather && answer->status == StoreStatus::kOk)
        require_property(!unpack_texts(answer->body).empty());
    } catch (const CommError&) {
    }
  }
  return 0;
}
