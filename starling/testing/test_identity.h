// test_identity: the identity of both sides of a test's connections.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "starling/net/security/job_key.h"
#include "starling/net/security/parties.h"

namespace starling {

// Returns an identity whose key is 32 times `fill`. Sides with different keys refuse each other.
inline JobIdentity test_identity(const std::string& job, DataSecurity security = DataSecurity::kNone,
                                 int fill = 7) {
  std::array<std::byte, JobKey::kBytes> bytes;
  bytes.fill(std::byte(fill));
  return {JobKey(bytes), job, security};
}

// Returns the parties of both sides of a test's connections.
inline Parties test_parties() {
  return {.service = "test", .target = "listener", .caller = "caller"};
}

}  // namespace starling
