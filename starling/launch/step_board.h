// StepBoard holds one number per rank in memory that the launcher and its ranks share. The number is the last
// step that the rank finished, 0 before its first step, and -1 before the rank trains. The launcher reads the
// number to report the step at which a rank was killed. Writing the number costs one store instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "starling/base/unique_fd.h"

namespace starling {

// Threads and processes may read and write the board at the same time.
class StepBoard {
 public:
  // Creates a board for `ranks` ranks, in the launcher. Throws Error(kInternal).
  static StepBoard create(int ranks);
  // Maps the inherited descriptor, which stays open, in a rank. Throws Error(kInternal) if it is not a board
  // for `ranks` ranks.
  static StepBoard open(int fd, int ranks);
  ~StepBoard();
  StepBoard(StepBoard&& other) noexcept;
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;

  // Sets the last step that the rank finished.
  void set(int rank, int64_t step);
  // Sets the step of a rank whose run cannot go on after the loss of a rank. get() then returns
  // kFirstOfLoop - step.
  void set_of_loop(int rank, int64_t step) { set(rank, kFirstOfLoop - step); }
  // Says that the process is a server. get() then returns kServer.
  void set_server(int rank) { set(rank, kServer); }
  // Returns the last step of the rank. -1: the rank has not written one. Below -1: see set_of_loop() and
  // set_server().
  int64_t get(int rank) const;
  static constexpr int64_t kServer = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kFirstOfLoop = -2;
  // Returns the last step from what get() has returned, or -1, or kServer.
  static int64_t last_step(int64_t got) {
    return got <= kFirstOfLoop && got != kServer ? kFirstOfLoop - got : got;
  }
  // The descriptor for the ranks to inherit. It is -1 on a board of open().
  int fd() const { return fd_.get(); }

 private:
  StepBoard(UniqueFd fd, int map_fd, int ranks);
  int64_t* cell(int rank) const;

  UniqueFd fd_;
  void* map_ = nullptr;
  int ranks_;
};

}  // namespace starling
