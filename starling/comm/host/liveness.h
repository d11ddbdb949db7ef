// Liveness: what a waiting rank knows about the other ranks of its host. It tells which ranks died, failed or
// left.
//
// A rank that fails writes the reason and the rank at fault into its control block. The other ranks of the
// host then end with an error that contains this reason, instead of a timeout of their own. The kernel
// reports the death of a process through a process descriptor (pidfd), without help of the dead process.
#pragma once

#include <poll.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/comm/host/control_block.h"
#include "starling/comm/window.h"

namespace starling {

// Failure is the reason why a group cannot go on.
struct Failure {
  std::string reason;
  int culprit = -1;  // the rank in the group that is at fault; -1: unknown
  bool is_timeout = false;
};

// Throws the failure as a TimeoutError if is_timeout, otherwise as a CommError.
[[noreturn]] void throw_failure(const Failure& failure);

// Liveness watches the ranks of one host.
class Liveness {
 public:
  // `control` holds the control blocks and must outlive this object. `ranks` has the rank in the group of
  // each local rank. `host` is the host's name for messages.
  Liveness(const Window& control, int local_rank, std::vector<int> ranks, std::string host);

  // Writes this process's pid and its pid namespace into the control block.
  void publish_pid();
  // Opens the process descriptors of the other ranks. Ranks in another pid namespace (a container) have none.
  // Only the store reports their death. Every rank must have called publish_pid() before (barrier).
  void watch();

  // Records that this rank failed. The first failure stays. At most 999 bytes of the reason are kept. Any
  // thread may call it.
  void fail(const Failure& failure);
  // Records that this rank no longer takes part and has not failed.
  void leave();
  // Returns this rank's own failure, or nothing.
  std::optional<Failure> own() const;
  // Returns a reason to stop waiting for local rank `awaited` (-1: for no particular rank), or nothing.
  // Reasons are an own failure, a failed or dead rank, and that `awaited` has left. It costs one system call
  // per rank.
  std::optional<Failure> trouble(int awaited);
  // Returns the rank's name for messages: "rank 2 (node-a)".
  std::string name(int local_rank) const;
  // Returns true unless the rank has failed or left. It costs one load.
  bool takes_part(int local_rank) const;
  // Returns the rank in the group of a local rank.
  int global_rank(int local_rank) const { return ranks_[local_rank]; }

 private:
  RankState& state(int local_rank) const { return ControlLayout::block(control_.region(local_rank)).state; }
  std::optional<Failure> read(int local_rank) const;

  const Window& control_;
  const int local_rank_;
  const std::vector<int> ranks_;
  const std::string host_;
  std::vector<UniqueFd> processes_;  // invalid: this process itself, or one that is not visible here
};

}  // namespace starling
