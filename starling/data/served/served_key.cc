#include "starling/data/served/served_key.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

#include "starling/base/error.h"
#include "starling/data/served/served_server.h"
#include "starling/net/address.h"

namespace starling {

std::string local_served_key_file(uint16_t port) {
  return fmt::format("/tmp/starling-data-{}-{}.key", ::geteuid(), port);
}

ServedPlace parse_served(const std::string& text) {
  static constexpr std::string_view kKey = ",key=";
  const size_t comma = text.find(',');
  ServedPlace place{text.substr(0, comma), ""};
  if (comma != std::string::npos) {
    if (!std::string_view(text).substr(comma).starts_with(kKey) || text.size() == comma + kKey.size())
      throw ConfigError(
          "data.source",
          fmt::format("\"served:{}\" must be served:HOST:PORT or served:HOST:PORT,key=FILE", text));
    place.key_file = text.substr(comma + kKey.size());
  }
  parse_host_port(place.address);
  return place;
}

JobIdentity served_identity(const ServedPlace& place, DataSecurity security) {
  if (!place.key_file.empty()) return {read_job_key_file(place.key_file), kServedJobId, security};
  const HostPort where = parse_host_port(place.address);
  if (!resolve(where).is_loopback()) {
    throw ConfigError(
        "data.source",
        fmt::format(
            "served:{0} is on another host: give the key file of `starling data serve --key-file F` there, "
            "by --data served:{0},key=F",
            place.address));
  }
  const std::string local = local_served_key_file(where.port);
  if (::access(local.c_str(), F_OK) != 0) {
    throw ConfigError(
        "data.source",
        fmt::format(
            "no data server of this user serves at {0} ({1} is not there): start one by `starling data "
            "serve --data SOURCE --port {2}`, or name its key by --data served:{0},key=F",
            place.address, local, where.port));
  }
  return {read_job_key_file(local), kServedJobId, security};
}

Parties served_parties() {
  return {.service = "data", .target = "data server", .caller = "reader"};
}

}  // namespace starling
