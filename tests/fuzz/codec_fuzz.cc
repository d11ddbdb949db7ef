// Decodes any bytes as a message of a codec. The codec must decode them within bounds, which AddressSanitizer
// checks, or refuse them with a CommError.
#include <memory>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/codec/make_codec.h"
#include "tests/fuzz/codec_words.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const std::string word = kCodecWords[input.byte() % std::size(kCodecWords)];
  const std::vector<TensorShape> shapes = {{1 + input.byte() % 9u, 1 + input.byte() % 33u, 0},
                                           {1, 1 + input.byte() % 65u, 0}};
  const auto codec = make_codec(word, shapes);
  const size_t count = shapes[0].size() + shapes[1].size();
  const std::string text = input.text(size);
  // The memory has exactly the message's size, so that AddressSanitizer detects a read behind the message.
  const std::vector<std::byte> message(reinterpret_cast<const std::byte*>(text.data()),
                                       reinterpret_cast<const std::byte*>(text.data()) + text.size());
  for (const bool add : {false, true}) {
    std::vector<float> values(count);
    try {
      if (add)
        codec->decode_add(message, values, 0.5f);
      else
        codec->decode(message, values);
    } catch (const CommError&) {
    }
  }
  return 0;
}
