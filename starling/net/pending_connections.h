// The connections of a listener that have not yet proved the job key. Each has five seconds and 4 KiB; at most 128 are
// kept, further ones wait in the kernel's queue. Where that many are kept and more wait, the oldest goes after a second: a
// handshake takes two round trips, and whoever opens connections only to hold them cannot keep the others out.
// Used in poll loops: nothing here waits.
#pragma once

#include <poll.h>

#include <chrono>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/net/deadline.h"
#include "starling/net/handshake.h"

namespace starling {

struct AdmissionLimits {
  std::chrono::milliseconds timeout{5000};  // for the whole handshake
  size_t max_pending = 128;
  std::chrono::milliseconds grace{1000};  // what each has even when more wait
};

struct AuthenticatedSocket {
  UniqueFd socket;
  ConnectionKeys keys;
};

// One thread.
class PendingConnections {
 public:
  PendingConnections(const JobIdentity& identity, AdmissionLimits limits)
      : identity_(identity), limits_(limits) {}

  // Accepts what waits at `listener`, as far as the limit allows. Processes of other users are refused (Unix sockets).
  void accept_all(int listener);
  // False while the limit holds and none may be dropped for another yet: do not poll the listener then.
  bool has_room() const { return !full() || has_passed(pending_.front().since + limits_.grace); }
  size_t size() const { return pending_.size(); }

  // What to poll for, and the earliest time at which advance() has something to do regardless.
  void append_to(std::vector<pollfd>& polled) const;
  Deadline earliest_deadline(Deadline otherwise) const;

  // Takes every handshake as far as it goes, drops those that failed or are late, returns those that are complete.
  std::vector<AuthenticatedSocket> advance();

  // Connections dropped so far, and why the last one was.
  size_t refused() const { return refused_; }
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Pending {
    UniqueFd socket;
    std::string peer;
    Handshake handshake;
    Deadline since;
    size_t sent = 0;  // of handshake.output()
  };

  bool full() const { return pending_.size() >= limits_.max_pending; }
  void advance_one(Pending& pending);
  void send_output(Pending& pending);
  void refuse(const std::string& peer, const std::string& why);

  JobIdentity identity_;
  AdmissionLimits limits_;
  std::vector<Pending> pending_;  // the oldest first
  size_t refused_ = 0;
  std::string last_refusal_;
};

}  // namespace starling
