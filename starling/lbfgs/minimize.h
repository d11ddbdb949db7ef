// L-BFGS as a loop of instructions to those who hold the vectors. This is Sandblaster (Dean et al., "Large
// scale distributed deep networks", NIPS 2012, section 4.2 and algorithm 2). The loop itself is deterministic
// and sees scalars only.
//
//   d = −H g   (two_loop.h),   t by the strong Wolfe conditions (line_search.h),   x ← x + t d.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "starling/lbfgs/line_search.h"
#include "starling/lbfgs/vector_machine.h"

namespace starling {

struct MinimizeOptions {
  int memory = 10;                // pairs s, y
  double tolerance = 1e-9;        // ends when no element of the gradient is larger
  int64_t max_iterations = 1000;  // ends after so many iterations
  WolfeOptions line = {};
};

// The scalars of the loop between two iterations. With the vectors kPoint, kGradient and the pairs, they are
// all that a resumed run needs.
struct MinimizeState {
  int64_t iterations = 0;
  int64_t evaluations = 0;
  double objective = 0;
  double largest_gradient = 0;
  double least_objective = 0;  // the smallest so far
  double least_gradient = 0;   // the smallest largest_gradient so far
  int fruitless = 0;           // iterations in sequence that have lowered neither of these two
  bool exhausted = false;      // a line search has found no step, because fp64 shows no further decrease
  std::vector<int> slots;      // of the pairs, oldest first
  bool started = false;        // kPoint and kGradient hold values
};

// Why the loop ended.
enum class MinimizeEnd : uint32_t {
  kConverged,
  kIterations,
  kNoDecrease,  // fp64 shows no further decrease, in a line search or in ten iterations in sequence
  kNoStep,      // no step decreases the objective, although its slope promises a decrease that fp64 shows
  kStopped
};

// What is reported after each iteration.
struct MinimizeStep {
  const MinimizeState& state;
  double step = 0;  // t
};

// Minimizes from the state. A state that has not started begins at x = 0. `after` is called after each
// iteration and returns false to stop. Returns why the loop ended; `state` is then the last state. A call
// with the state of an ended loop ends at once, unless options.tolerance or options.max_iterations let it go
// on. Errors: Error(kNumeric) if the objective is not finite at the start; those of the machine.
MinimizeEnd minimize(VectorMachine& machine, const MinimizeOptions& options, MinimizeState& state,
                     const std::function<bool(const MinimizeStep&)>& after);

}  // namespace starling
