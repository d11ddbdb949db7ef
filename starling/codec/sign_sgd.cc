// Codec "signsgd" sends the sign of each value. The ranks vote on the sign of each element. Bernstein, Wang,
// Azizzadenesheli, Anandkumar: "signSGD: compressed optimisation for non-convex problems", ICML 2018 (arXiv
// 1802.04434), algorithm 3. Bernstein, Zhao, Azizzadenesheli, Anandkumar: "signSGD with majority vote is
// communication efficient and fault tolerant", ICLR 2019 (arXiv 1810.05291).
//
//   rank k sends sign(v_k),   the decoded result is V = sign(sum over k of sign(v_k)),   w := w - lr V.
//   message: for each tensor of m values: a head (fp32), then m signs of 1 bit: 1 for +, 0 for -.
//   bytes(n) = sum over the tensors of 4 + ceil(m / 8).                               Fixed rate, exact.
//
// v_k is the gradient g_k of rank k, or its velocity. With the velocity this is SIGNUM, algorithm 1 of the
// second paper (momentum_correction.h).
//
// The vote (Combining::kVoted). The owner of a part decodes ±1 of each rank and adds them. It encodes the
// mean, whose sign is that of the majority, and sends it to all ranks.
//
// Zeros and ties. One bit cannot say 0. A value that is exactly 0 gets a sign by a fair draw of
// random_codec.h. A sum of votes that is 0, which is a tie of an even number of ranks, is such a value. The
// owner draws its sign, and all ranks get this sign. A rule such as "a tie is +" would move the weights in
// one direction. There is one exception: if all values of a tensor in a message are 0, the head is 0 and they
// decode to zeros. So a rank without a gradient does not vote, and a tensor without votes does not move.
//
// The head is 1 in other tensors, so the update of an element is ±1 times the learning rate. It does not
// depend on the size of the gradient. The natural rate is therefore that of Adam, not that of SGD. Without
// shapes, the range is one tensor.
//
// A tensor that holds a NaN or infinity has the head NaN and decodes to NaN.
#include <cmath>
#include <limits>

#include "starling/codec/codec_spec.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/packed_blocks.h"

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

// The format of signSGD. A block is a whole tensor.
class SignSgdFormat {
 public:
  static constexpr const char* kName = "signsgd";
  static constexpr Combining kCombining = Combining::kVoted;

  static constexpr size_t bits() { return 1; }
  static float head(std::span<const float> tensor) { return head_of(tensor); }

  static auto encoder(float /*head*/, const Draws& draws) {
    return [draws](float x, size_t i) {
      if (x == 0) return static_cast<uint32_t>(draws.bits(i) >> 63);
      return x > 0 ? 1u : 0u;
    };
  }
  static auto decoder(float head, const RefuseMessage& refuse) {
    if (head != 0 && head != 1 && !std::isnan(head)) refuse("has a head that is not 0, 1 or NaN");
    return [head](uint32_t code) { return code != 0 ? head : -head; };
  }
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_sign_sgd(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  return packed_blocks(spec.seed, SignSgdFormat{}, kWholeTensor, shapes);
}

}  // namespace starling
