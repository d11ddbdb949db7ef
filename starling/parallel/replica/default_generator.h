// torch's default generator of random numbers on the CPU. It belongs to the process. A user's module draws
// its initial values and the masks of torch::nn::Dropout from it. Starling's own layers do not
// (keyed_random.h).
//
// All functions may be called from several threads at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace starling {

// Returns the state of the generator: bytes, in a new tensor.
at::Tensor default_generator_state();

// Sets the state of the generator to one that default_generator_state() returned. Errors: c10::Error if the
// tensor is not such a state.
void set_default_generator_state(const at::Tensor& state);

// Seeds the generator.
void seed_default_generator(uint64_t seed);

// Keeps the state of the generator, and puts it back on destruction.
class KeptGenerator {
 public:
  KeptGenerator() : state_(default_generator_state()) {}
  ~KeptGenerator() { set_default_generator_state(state_); }
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  at::Tensor state_;
};

}  // namespace starling
