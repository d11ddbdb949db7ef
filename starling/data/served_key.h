// The key of a data server, and how its readers come to it. The training job has a key of its own (net/job_key.h).
#pragma once

#include <cstdint>
#include <string>

#include "starling/net/job_key.h"

namespace starling {

// Where a server at this port of the loopback interface keeps its key if no file is named: readers of the same user on the same
// host find it there. "/tmp/starling-data-<uid>-<port>.key"
std::string local_served_key_file(uint16_t port);

// The place of a source `served:HOST:PORT[,key=FILE]`.
struct ServedPlace {
  std::string address;   // "host:port"
  std::string key_file;  // empty: the local one
};
// text: what follows "served:". ConfigError where it is not that.
ServedPlace parse_served(const std::string& text);

// What a reader proves itself by. Without a key file the local one is meant, for loopback addresses only. security: comm.security of
// the reader, which must be the server's. Errors: ConfigError naming the file, or the command that makes one.
JobIdentity served_identity(const ServedPlace& place, DataSecurity security = DataSecurity::kNone);

}  // namespace starling
