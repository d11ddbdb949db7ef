// DataSecurity: how the bytes of data messages are protected on connections between hosts (comm.security,
// --net-security).
//
// Control messages and the headers of all messages are always authenticated. Both ends of a connection must
// have the same setting (handshake.h).
#pragma once

#include <cstdint>
#include <string>

namespace starling {

// DataSecurity is the setting.
enum class DataSecurity : uint8_t {
  kNone = 0,     // bytes are unprotected: whoever can change packets on the network can change gradients
  kAuth = 1,     // every byte is authenticated, and none is hidden
  kEncrypt = 2,  // every byte is authenticated and encrypted, of control messages, too
};

// Returns "none", "auth" or "encrypt".
const char* security_name(DataSecurity security);
// Returns the setting with this name. Errors: ConfigError that names `key` for any other word.
DataSecurity security_named(const std::string& name, const std::string& key = "comm.security");

}  // namespace starling
