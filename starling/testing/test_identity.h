// test_identity: what both sides of a test's connections know.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "starling/net/job_key.h"

namespace starling {

// The key is 32 times `fill`; sides with another one do not know each other.
inline JobIdentity test_identity(const std::string& job, DataSecurity security = DataSecurity::kNone,
                                 int fill = 7) {
  std::array<std::byte, JobKey::kBytes> bytes;
  bytes.fill(std::byte(fill));
  return {JobKey(bytes), job, security};
}

}  // namespace starling
