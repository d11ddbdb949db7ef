// PendingConnections: the connections of a listener that have not yet proved the job key.
//
// Each connection has five seconds and 4 KiB for its handshake. At most 128 are kept, and further ones wait
// in the kernel's queue. If 128 are kept and more wait, the oldest connection is dropped once it is a second
// old. A handshake takes one and a half round trips, so a process that only holds connections open cannot
// keep others out. TLS begins for a connection when its greeting has come, so a silent connection costs
// little.
//
// The class is for poll loops: no call waits.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/net/deadline.h"
#include "starling/net/security/handshake.h"

namespace starling {

// AdmissionLimits holds the limits. The defaults are those described above.
struct AdmissionLimits {
  std::chrono::milliseconds timeout{5000};  // for the whole handshake
  size_t max_pending = 128;
  std::chrono::milliseconds grace{1000};  // what a connection has even if more connections wait
};

// AuthenticatedSocket is a connection whose handshake is complete.
struct AuthenticatedSocket {
  UniqueFd socket;
  ConnectionKeys keys;
};

// PendingConnections may be used by one thread at a time.
class PendingConnections {
 public:
  // `identity` is the identity of the listener, and `parties` says who it is. Errors: ConfigError if the job
  // id is bad.
  PendingConnections(const JobIdentity& identity, Parties parties, AdmissionLimits limits);

  // Accepts the connections that wait at `listener`, up to the limit. It refuses processes of other users
  // (Unix sockets). Errors: CommError if this process or the machine has no descriptors left (accept_from).
  void accept_all(int listener);
  // Returns false if the limit is reached and no connection may be dropped yet. Do not poll the listener
  // then.
  bool has_room() const { return !full() || has_passed(pending_.front().since + limits_.grace); }
  // The number of pending connections.
  size_t size() const { return pending_.size(); }

  // Appends what to poll for.
  void append_to(std::vector<pollfd>& polled) const;
  // Returns the time at which advance() has something to do in any case, or `otherwise` if that is earlier.
  Deadline earliest_deadline(Deadline otherwise) const;

  // Advances every handshake as far as possible. Drops those that failed or are late, and returns those that
  // are complete.
  std::vector<AuthenticatedSocket> advance();

  // How many connections have been dropped so far.
  size_t refused() const { return refused_; }
  // Why the last connection was dropped.
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  struct Pending {
    UniqueFd socket;
    std::string peer;
    Handshake handshake;
    Deadline since;
    size_t sent = 0;  // bytes of handshake.output()
  };

  bool full() const { return pending_.size() >= limits_.max_pending; }
  void advance_one(Pending& pending);
  void send_output(Pending& pending);
  void refuse(const std::string& peer, const std::string& why);

  JobIdentity identity_;
  Parties parties_;
  AdmissionLimits limits_;
  std::shared_ptr<const TlsSettings> settings_;
  std::vector<Pending> pending_;  // the oldest first
  size_t refused_ = 0;
  std::string last_refusal_;
};

}  // namespace starling
