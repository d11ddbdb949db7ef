// UpdatePart is a part of an update's range.
#pragma once

#include <cstddef>
#include <vector>

#include "starling/optim/update_rule.h"

namespace starling {

// The buffers of the elements [begin, end) of an update, as UpdateArgs of their own. The buffers of the whole
// update must outlive it.
template <typename T, typename G>
struct UpdatePart {
  // states: the number of states that the rule has.
  UpdatePart(const UpdateArgs<T, G>& all, size_t begin, size_t end, int states) : args(all) {
    for (int s = 0; s < all.sources; ++s) gradients.push_back(all.gradients[s] + begin);
    for (int k = 0; k < states; ++k) {
      state.push_back(all.state[k] + begin);
      state_out.push_back(all.state_out[k] + begin);
    }
    args.gradients = gradients.data();
    args.parameter += begin;
    args.parameter_out += begin;
    if (args.bf16_out != nullptr) args.bf16_out += begin;
    args.state = state.data();
    args.state_out = state_out.data();
    args.count = end - begin;
  }
  UpdatePart(const UpdatePart&) = delete;

  std::vector<const G*> gradients;
  std::vector<const T*> state;
  std::vector<T*> state_out;
  UpdateArgs<T, G> args;
};

}  // namespace starling
