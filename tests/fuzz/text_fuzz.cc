// Reads any bytes as a text file, plain or gzip. The reader must refuse them with a DataError, or return
// windows of ids within the vocabulary. Text that is UTF-8 must be equal after decoding and encoding.
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/text_store.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void check(const TextStore* text, int64_t tokens, int64_t shift) {
  if (text == nullptr) return;
  std::vector<int64_t> ids(static_cast<size_t>(tokens) + 1);
  for (int64_t i = 0; i < text->samples(tokens); ++i) {
    text->read(i, tokens, shift, ids.data());
    for (const int64_t id : ids) require_property(id >= 0 && id < text->vocabulary().size());
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  FuzzInput input(data, size);
  const int64_t tokens = 1 + input.byte() % 16;
  const int64_t shift = input.byte() % tokens;
  const double validation = (input.byte() % 4) / 4.0;
  const std::string bytes = input.text(size);
  try {
    require_property(encode_utf8(decode_utf8(bytes, "f")) == bytes);
  } catch (const DataError&) {
  }
  try {
    const TextParts parts = open_text(file.with(bytes), validation, tokens);
    check(parts.train.get(), tokens, shift);
    check(parts.test.get(), tokens, shift);
    const TextParts like = open_text(file.with(bytes), 0, tokens, parts.train.get());
    require_property(like.test == nullptr);
  } catch (const DataError&) {
  }
  return 0;
}
