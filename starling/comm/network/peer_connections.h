// The connections between the ranks of a group that do not share memory.
//
// Each pair of ranks has two connections: one for collectives, one for send and recv. A Connector makes them:
// over TCP (tcp_connections.h), over UCX (ucx_connections.h), or in memory for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/net/deadline.h"
#include "starling/net/endpoint.h"

namespace starling {

// ConnectionSetup is what a Connector needs to know.
struct ConnectionSetup {
  int rank = 0;
  // A text with the generation and the name of the group. Both ends of a connection must have equal texts.
  std::string group = {};
  std::vector<std::string> host_names;  // of each rank
  std::vector<bool> remote;             // for each rank, whether to connect to it
  Deadline deadline;
  // Shows this rank's address to the other ranks.
  std::function<void(const std::string&)> publish;
  // Waits until every rank of the group has shown its address, and returns the addresses by rank.
  std::function<std::vector<std::string>()> addresses;
  // Throws CommError if a rank is known to be lost. It may be empty. Several threads may call it.
  std::function<void(int)> refuse_lost = {};
};

// PeerConnections holds the connections of this rank, by rank. They are null for ranks that are not remote.
struct PeerConnections {
  std::vector<std::unique_ptr<Endpoint>> collectives;
  std::vector<std::unique_ptr<Endpoint>> messages;
};

// Makes the connections. It is called on every rank that has remote ranks.
// Errors: CommError or TimeoutError that names a rank that did not connect.
using Connector = std::function<PeerConnections(const ConnectionSetup&)>;

}  // namespace starling
