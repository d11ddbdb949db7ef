// How the bytes of data messages are protected on connections between hosts (comm.security, --net-security). Control messages,
// and the headers of all, are authenticated always. Both ends of a connection must agree (handshake.h).
#pragma once

#include <cstdint>
#include <string>

namespace starling {

enum class DataSecurity : uint8_t {
  kNone = 0,     // as they are: who can change packets on the network can change gradients
  kAuth = 1,     // every byte authenticated, none hidden
  kEncrypt = 2,  // authenticated and encrypted, control messages too
};

// "none", "auth", "encrypt".
const char* security_name(DataSecurity security);
// ConfigError where it is none of these.
DataSecurity security_named(const std::string& name);

}  // namespace starling
