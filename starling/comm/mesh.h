// The connections of a group between ranks that do not share memory: each pair has one for collectives and one for
// send and recv. How they are made is a Connector: over TCP (tcp_mesh), or in memory for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "starling/net/deadline.h"
#include "starling/net/endpoint.h"

namespace starling {

struct MeshSetup {
  int rank = 0;
  std::vector<std::string> host_names;  // of each rank
  std::vector<bool> remote;             // which ranks to connect to
  Deadline deadline;
  // Shows an address to the other ranks; waits for the address that a rank has shown.
  std::function<void(const std::string&)> publish;
  std::function<std::string(int)> address_of;
};

// By rank; null where not remote.
struct Mesh {
  std::vector<std::unique_ptr<Endpoint>> collectives;
  std::vector<std::unique_ptr<Endpoint>> mail;
};

// Called on every rank that has remote ranks. CommError or TimeoutError naming a rank that has not come.
using Connector = std::function<Mesh(const MeshSetup&)>;

}  // namespace starling
