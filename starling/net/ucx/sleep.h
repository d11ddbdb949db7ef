// UcxSleep: what a thread polls that moves one direction of a connection over UCX: the worker, the TCP connection beneath, and the word
// of another thread that has progressed the worker. Guarded by the worker's mutex, but for poll_fd().
#pragma once

#include "starling/base/unique_fd.h"
#include "starling/net/ucx/plugin.h"

namespace starling {

class UcxSleep {
 public:
  // CommError where the system has no descriptors left.
  UcxSleep(int worker_fd, int tcp_fd);
  int poll_fd() const { return poll_.get(); }
  // No more of the TCP connection, which has ended.
  void forget_tcp();

  // The thread is going to poll, and finds something at once where `busy`; it no longer does.
  void begin(bool busy);
  void end();
  // Something that it waits for has come.
  void wake();

 private:
  const int tcp_fd_;
  UniqueFd wake_;
  UniqueFd poll_;
  bool sleeping_ = false;
  bool woken_ = false;
};

// A transfer of that direction.
class UcxStep final : public UcxTransfer {
 public:
  explicit UcxStep(UcxSleep& sleep) : sleep_(sleep) {}

 protected:
  void ended() override { sleep_.wake(); }

 private:
  UcxSleep& sleep_;
};

}  // namespace starling
