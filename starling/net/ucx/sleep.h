// UcxSleep: the descriptor that a thread polls while it moves one direction of a connection over UCX. It
// combines the worker, the TCP connection beneath, and a wake-up by another thread that has progressed the
// worker. The worker's mutex guards it, except for poll_fd().
#pragma once

#include "starling/base/unique_fd.h"
#include "starling/net/ucx/ucx_plugin.h"

namespace starling {

// UcxSleep is the descriptor of one direction.
class UcxSleep {
 public:
  // Errors: CommError if the system has no descriptors left.
  UcxSleep(int worker_fd, int tcp_fd);
  // The descriptor to poll for POLLIN.
  int poll_fd() const { return poll_.get(); }
  // Stops watching the TCP connection, because it has ended.
  void forget_tcp();

  // The thread is about to poll. If `busy`, poll returns at once.
  void begin(bool busy);
  // The thread no longer polls.
  void end();
  // Wakes the thread, because something that it awaits has happened.
  void wake();

 private:
  const int tcp_fd_;
  UniqueFd wake_;
  UniqueFd poll_;
  bool sleeping_ = false;
  bool woken_ = false;
};

// UcxStep is a transfer of that direction. It wakes the thread when it ends.
class UcxStep final : public UcxTransfer {
 public:
  // `sleep` must outlive the step.
  explicit UcxStep(UcxSleep& sleep) : sleep_(sleep) {}

 protected:
  void ended() override { sleep_.wake(); }

 private:
  UcxSleep& sleep_;
};

}  // namespace starling
