// The key of a data server and how its readers find it. The training job has a key of its own
// (net/security/job_key.h).
#pragma once

#include <cstdint>
#include <string>

#include "starling/net/security/job_key.h"
#include "starling/net/security/parties.h"

namespace starling {

// Returns the file in which a server at this port of the loopback interface keeps its key if no file is
// named: "/tmp/starling-data-<uid>-<port>.key". Readers of the same user on the same host find it there.
std::string local_served_key_file(uint16_t port);

// The parts of a source `served:HOST:PORT[,key=FILE]`.
struct ServedPlace {
  std::string address;   // "host:port"
  std::string key_file;  // empty: local_served_key_file()
};
// Parses the text after "served:". Errors: ConfigError if it is malformed.
ServedPlace parse_served(const std::string& text);

// Returns the identity that a reader proves itself by. Without a key file, it uses the local key file, for
// loopback addresses only. `security` is comm.security of the reader and must equal the server's. Errors:
// ConfigError that names the file or the command that makes one.
JobIdentity served_identity(const ServedPlace& place, DataSecurity security = DataSecurity::kNone);

// The parties of the connections to a data server, for its listener and its readers.
Parties served_parties();

}  // namespace starling
