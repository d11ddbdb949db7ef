// StepBoard: one number a rank in memory that the launcher and its ranks share: the last step that the rank finished, 0 when
// it is about to make its first. The launcher reads it to say at which step a killed rank died; writing it costs a store.
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/base/unique_fd.h"

namespace starling {

class StepBoard {
 public:
  // The launcher's: a new board for `ranks` ranks. Error(kInternal) if the kernel refuses.
  static StepBoard create(int ranks);
  // A rank's: maps the inherited descriptor, which stays open. Error(kInternal) if it is no board for that many ranks.
  static StepBoard open(int fd, int ranks);
  ~StepBoard();
  StepBoard(StepBoard&& other) noexcept;
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;

  void set(int rank, int64_t step);
  int64_t get(int rank) const;  // -1: none yet
  int fd() const { return fd_.get(); }

 private:
  StepBoard(UniqueFd fd, int map_fd, int ranks);
  int64_t* cell(int rank) const;

  UniqueFd fd_;
  void* map_ = nullptr;
  int ranks_;
};

}  // namespace starling
