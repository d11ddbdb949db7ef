// PackedBlocksCodec is a codec that draws random numbers and writes codes of few bits by blocks. Each block
// has a head, which is a number such as the scale of its values. A class for each paper, the Format, computes
// the head and the codes.
//
// A message has two parts for each block of m values, with codes of b bits (packed_codes.h):
//
//   the head (fp32), then the m codes.
//   bytes(n) = sum over the blocks of 4 + ceil(m b / 8).                              Fixed rate, exact.
//
// BlockCut makes the blocks. The padding after a tensor is not sent and decodes to 0.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/codec/block_cut.h"
#include "starling/codec/kernel.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/packed_codes.h"
#include "starling/codec/random_codec.h"

namespace starling {

// Refuses the message that is being decoded.
struct RefuseMessage {
  const char* codec;
  size_t bytes, count;
  // Throws the CommError of a message that `codec` cannot have made. what: "has a head that …".
  [[noreturn]] void operator()(const std::string& what) const { bad_message(codec, bytes, count, what); }
};

// The codec of a Format. Several threads may call decoder() at the same time. A Format has these members:
//
//   kName, kCombining      The name of the codec, and how its messages are combined.
//   bits()                 Returns the bits of a code, 1 to 8.
//   head(values)           Returns the head of a block.
//   encoder(head, draws)   Returns a function (x, i) that returns the code of the value x. Draw i of the
//                          message (random_codec.h) belongs to this value.
//   decoder(head, refuse)  Returns a function (code) that returns the decoded value. The decoder and its
//                          function call `refuse`, a RefuseMessage, for what no encoder writes.
template <typename Format>
class PackedBlocksCodec final : public RandomCodec {
 public:
  // seed: as for RandomCodec. block and shapes: as for BlockCut.
  PackedBlocksCodec(uint64_t seed, Format format, size_t block, std::vector<TensorShape> shapes)
      : RandomCodec(seed), format_(std::move(format)), blocks_(block, std::move(shapes)) {}
  std::string name() const override { return Format::kName; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Format::kCombining; }

  size_t encoded_bytes(size_t count) const override {
    size_t bytes = 0;
    blocks_.for_each(count, [&](size_t begin, size_t end) { bytes += bytes_of_block(end - begin); });
    return bytes;
  }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    const size_t bytes = encoded_bytes(in.size());
    check_room(out.size(), bytes);
    const Draws draws = this->draws();
    std::byte* to = out.data();
    blocks_.for_each(in.size(), [&](size_t begin, size_t end) {
      const float head = format_.head(in.subspan(begin, end - begin));
      const auto code_of = format_.encoder(head, draws);
      store_value(to, head);
      pack_codes(to + kHeadBytes, end - begin, format_.bits(),
                 [&](size_t i) { return code_of(in[begin + i], begin + i); });
      to += bytes_of_block(end - begin);
    });
    return bytes;
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    decode_each(in, out, Assign{});
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    decode_each(in, out, AddScaled{scale});
  }

 private:
  static constexpr size_t kHeadBytes = sizeof(float);
  size_t bytes_of_block(size_t m) const { return kHeadBytes + packed_bytes(m, format_.bits()); }

  template <typename Put>
  void decode_each(std::span<const std::byte> in, std::span<float> out, const Put& put) const {
    check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    const RefuseMessage refuse{Format::kName, in.size(), out.size()};
    const std::byte* from = in.data();
    const auto block = [&](size_t begin, size_t end) {
      const auto value_of = format_.decoder(load_value<float>(from), refuse);
      unpack_codes(from + kHeadBytes, end - begin, format_.bits(),
                   [&](size_t i, uint32_t code) { put(out[begin + i], value_of(code)); });
      from += bytes_of_block(end - begin);
    };
    blocks_.for_each(out.size(), block, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  }

  Format format_;
  BlockCut blocks_;
};

// Makes the codec of `format`.
template <typename Format>
std::unique_ptr<Codec> packed_blocks(uint64_t seed, Format format, size_t block,
                                     const std::vector<TensorShape>& shapes) {
  return std::make_unique<PackedBlocksCodec<Format>>(seed, std::move(format), block, shapes);
}

}  // namespace starling
