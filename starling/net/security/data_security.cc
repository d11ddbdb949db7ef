#include "starling/net/security/data_security.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

const char* security_name(DataSecurity security) {
  switch (security) {
    case DataSecurity::kNone:
      return "none";
    case DataSecurity::kAuth:
      return "auth";
    case DataSecurity::kEncrypt:
      return "encrypt";
  }
  return "unknown";
}

DataSecurity security_named(const std::string& name, const std::string& key) {
  for (const DataSecurity security : {DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt})
    if (name == security_name(security)) return security;
  throw ConfigError(key, fmt::format("\"{}\" must be none, auth or encrypt", name));
}

}  // namespace starling
