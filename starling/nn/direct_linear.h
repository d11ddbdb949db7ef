// DirectLinear: while an object of this class lives, at::linear on the CPU computes, for every model and without any
// change to it, the gradients of its weight straight into their place in flat memory (nn/gradient_slot.h), instead of
// into a fresh tensor that is then copied there. Products and sums are those of ATen.
#pragma once

#include <memory>

namespace torch {
class Library;
}

namespace starling {

class DirectLinear {
 public:
  DirectLinear();
  ~DirectLinear();

 private:
  std::unique_ptr<torch::Library> library_;  // the registration; taken back when it goes
};

}  // namespace starling
