// MomentumCorrection moves the momentum of SGD in front of a codec. There are two forms. The trait
// factor_masking of the codec (spec/codec_table.h) chooses between them.
//
// Deep Gradient Compression is for codecs that send few values per step. Source: Lin, Han, Mao, Wang, Dally,
// "Deep Gradient Compression", ICLR 2018, sections 3.2 and 3.3.
//
//   u := m u + g.
//   x := u + r.
//   send encode(x).
//   r := x - decode(encode(x)).
//   u := 0 where a value was sent.
//
// r is the residual of error_feedback.h. m is the momentum, and u is 0 at first. The sum over all steps of
// what is sent, plus r, is the sum of all u. If every value were sent and u never became 0, the receiver
// would get the velocity of momentum m for the mean of the gradients.
//
// Momentum behind the codec fails, because it multiplies values that leave the residual late. Setting u to 0
// (momentum factor masking) keeps old gradients from moving a value for further steps after they were sent.
//
// SIGNUM is for codecs that send the sign of every value. Source: Bernstein, Zhao, Azizzadenesheli,
// Anandkumar, "signSGD with majority vote is communication efficient and fault tolerant", ICLR 2019
// (arXiv 1810.05291), algorithm 1.
//
//   u := m u + g.
//   send encode(u).
//
// There is no residual, and u never becomes 0, because every message has all values. The velocity of the
// paper, v := m v + (1 - m) g, is (1 - m) u. Both have the same signs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "starling/base/check.h"

namespace starling {

// Holds the velocity u of one range. Not thread-safe. Memory: count floats.
class MomentumCorrection {
 public:
  // count: the number of values of the range. momentum: m, in [0, 1).
  MomentumCorrection(size_t count, double momentum)
      : momentum_(static_cast<float>(momentum)), velocity_(count, 0.0f) {}

  // Replaces each gradient by the velocity that it makes.
  void begin(std::span<float> gradient) {
    STARLING_CHECK(gradient.size() == velocity_.size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      velocity_[i] = momentum_ * velocity_[i] + gradient[i];
      gradient[i] = velocity_[i];
    }
  }
  // Factor masking: sets the velocity to 0 where `sent`, the decoded message, is not 0.
  void end(std::span<const float> sent) {
    STARLING_CHECK(sent.size() == velocity_.size());
    for (size_t i = 0; i < sent.size(); ++i) velocity_[i] = sent[i] != 0 ? 0.0f : velocity_[i];
  }

  // Returns the velocity. The span is valid for the lifetime of this object.
  std::span<const float> velocity() const { return velocity_; }
  // Sets the velocity, for example from a checkpoint. `values` has as many values as the range.
  void load(std::span<const float> values) {
    STARLING_CHECK(values.size() == velocity_.size());
    std::copy(values.begin(), values.end(), velocity_.begin());
  }

 private:
  float momentum_;
  std::vector<float> velocity_;
};

}  // namespace starling
