// Codec "signsgd" sends the sign of each value. The ranks vote on the sign of each element. Bernstein, Wang,
// Azizzadenesheli, Anandkumar: "signSGD: compressed optimisation for non-convex problems", ICML 2018 (arXiv
// 1802.04434), algorithm 3; Bernstein, Zhao, Azizzadenesheli, Anandkumar: "signSGD with majority vote is
// communication efficient and fault tolerant", ICLR 2019 (arXiv 1810.05291).
//
//   rank k sends sign(g_k);   the decoded result is V = sign(sum over k of sign(g_k));   w := w - lr V
//   message: for each tensor of m values: a head (fp32), then m signs of 1 bit: 1 for +, 0 for -
//   bytes(n) = sum over the tensors of 4 + ceil(m / 8)                                fixed rate, exact
//
// The vote (Combining::kVoted). The owner of a part decodes ±1 of each rank and adds them. It encodes the
// mean, whose sign is that of the majority, and sends it to all ranks.
//
// Zeros and ties. One bit cannot say 0. A value that is exactly 0 gets a sign by a fair draw of
// random_codec.h. A sum of votes that is 0, which is a tie of an even number of ranks, is such a value: the
// owner draws its sign, and all ranks get this sign. A rule such as "a tie is +" would move the weights in
// one direction. There is one exception: if all values of a tensor in a message are 0, the head is 0 and they
// decode to zeros. So a rank without a gradient does not vote, and a tensor without votes does not move.
//
// The head is 1 in other tensors, so the update of an element is ±1 times the learning rate, whatever the
// size of the gradient is. The natural rate is therefore that of Adam, not that of SGD. Without shapes, the
// range is one tensor.
//
// A tensor that holds a NaN or infinity has the head NaN and decodes to NaN.
#include <cmath>
#include <limits>

#include "starling/codec/block_cut.h"
#include "starling/codec/codec_spec.h"
#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/packed_codes.h"
#include "starling/codec/random_codec.h"

namespace starling {
namespace {

constexpr size_t kWholeTensor = size_t{1} << 48;  // a block that no tensor exceeds

// Returns the head of a tensor.
float head_of(std::span<const float> tensor) {
  float head = 0;
  for (const float x : tensor) {
    if (!std::isfinite(x)) return std::numeric_limits<float>::quiet_NaN();
    if (x != 0) head = 1;
  }
  return head;
}

class SignSgdCodec final : public RandomCodec {
 public:
  SignSgdCodec(uint64_t seed, std::vector<TensorShape> shapes)
      : RandomCodec(seed), tensors_(kWholeTensor, std::move(shapes)) {}
  std::string name() const override { return "signsgd"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kVoted; }

  size_t encoded_bytes(size_t count) const override {
    size_t bytes = 0;
    tensors_.for_each(count, [&](size_t begin, size_t end) { bytes += 4 + packed_bytes(end - begin, 1); });
    return bytes;
  }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    const size_t bytes = encoded_bytes(in.size());
    check_room(out.size(), bytes);
    const Draws draws = this->draws();
    std::byte* to = out.data();
    tensors_.for_each(in.size(), [&](size_t begin, size_t end) {
      store_value(to, head_of(in.subspan(begin, end - begin)));
      pack_codes(to + 4, end - begin, 1, [&](size_t i) {
        const float x = in[begin + i];
        if (x == 0) return static_cast<uint32_t>(draws.bits(begin + i) >> 63);
        return x > 0 ? 1u : 0u;
      });
      to += 4 + packed_bytes(end - begin, 1);
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
  template <typename Put>
  void decode_each(std::span<const std::byte> in, std::span<float> out, const Put& put) const {
    check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    const std::byte* from = in.data();
    const auto tensor = [&](size_t begin, size_t end) {
      const auto head = load_value<float>(from);
      if (head != 0 && head != 1 && !std::isnan(head))
        bad_message("signsgd", in.size(), out.size(), "has a head that is not 0, 1 or NaN");
      unpack_codes(from + 4, end - begin, 1,
                   [&](size_t i, uint32_t code) { put(out[begin + i], code != 0 ? head : -head); });
      from += 4 + packed_bytes(end - begin, 1);
    };
    tensors_.for_each(out.size(), tensor, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  }

  BlockCut tensors_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_sign_sgd(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  return std::make_unique<SignSgdCodec>(spec.seed, shapes);
}

}  // namespace starling
