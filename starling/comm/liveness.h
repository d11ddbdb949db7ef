// Liveness: what one rank knows about the others of its host while it waits: who is dead, who failed and why, who left.
//
// A rank that fails says so in its control block, with the culprit, so that the others end with the same message instead
// of timeouts of their own. Death is seen through process descriptors (pidfd), at once and without the dead one's help.
#pragma once

#include <poll.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/comm/control_block.h"
#include "starling/comm/window.h"

namespace starling {

// Why a group cannot go on.
struct Failure {
  std::string reason;
  int culprit = -1;  // global rank
  bool is_timeout = false;
};

// Throws CommError or TimeoutError.
[[noreturn]] void throw_failure(const Failure& failure);

class Liveness {
 public:
  // ranks: the global ranks of this host's team, in order. `control` holds the control blocks.
  Liveness(const Window& control, int local_rank, std::vector<int> ranks, std::string host);

  // Opens the process descriptors; call once every rank has written its pid (publish_pid, then a barrier).
  void publish_pid();
  void watch();

  // Records that this rank failed; the first failure stays. From any thread.
  void fail(const Failure& failure);
  // This rank takes part no more, without a fault.
  void leave();
  // This rank's own failure.
  std::optional<Failure> own() const;
  // A reason to stop waiting for local rank `awaited` (-1: for nobody in particular): own failure, a failed or dead
  // rank, or that `awaited` left. One system call.
  std::optional<Failure> trouble(int awaited);
  // "rank 2 (node-a)".
  std::string name(int local_rank) const;
  // Whether the rank has neither failed nor left, as far as it has said so. One load.
  bool takes_part(int local_rank) const;
  int global_rank(int local_rank) const { return ranks_[local_rank]; }

 private:
  RankState& state(int local_rank) const { return ControlLayout::block(control_.region(local_rank)).state; }
  std::optional<Failure> read(int local_rank) const;

  const Window& control_;
  const int local_rank_;
  const std::vector<int> ranks_;
  const std::string host_;
  std::vector<UniqueFd> processes_;  // invalid: this process itself, or not visible from here
};

}  // namespace starling
