// Addresses: parsing and resolving "host:port", the interfaces of this host, and the identity of a host.
//
// An address as text: "10.0.0.1:4711", "[fe80::1%eth0]:4711", "node-b:4711"; of a Unix socket "/path" or "@name"
// (abstract: it exists only as long as its listener).
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

// ConfigError where `text` is not host:port.
HostPort parse_host_port(const std::string& text);

// An address that a socket can bind or connect to.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t bytes);

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const { return bytes_; }
  int family() const { return storage_.ss_family; }
  // 0 for Unix sockets.
  uint16_t port() const;
  // "10.0.0.1", "fe80::1%eth0"; of a Unix socket its path or "@name".
  std::string host() const;
  // As parse_host_port and unix_address read it.
  std::string text() const;
  // 0.0.0.0 or [::]: every interface.
  bool is_any() const;
  bool is_loopback() const;

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

// The first address of the name, for TCP. CommError where there is none.
SocketAddress resolve(const HostPort& target);
// "/path" or "@name" as an address; ConfigError where it is empty or longer than the system allows (107 bytes).
SocketAddress unix_address(const std::string& text);
// "/path" and "@name" as unix_address reads them, "host:port" as parse_host_port and resolve do.
SocketAddress parse_address(const std::string& text);
// The local and the remote address of a socket; CommError if it has none.
SocketAddress local_address(int fd);
SocketAddress remote_address(int fd);

struct Interface {
  std::string name;       // "eth0"
  SocketAddress address;  // with port 0
  bool loopback = false;
};

// The interfaces that are up, with their IPv4 and IPv6 addresses, in the system's order.
std::vector<Interface> list_interfaces();
// The address of this host from which packets to `remote` leave; CommError if there is no route. Sends nothing.
SocketAddress local_address_towards(const SocketAddress& remote);

// Ranks with equal host_id share memory and abstract Unix sockets: the boot's id, the network namespace and the host's
// name. Two network namespaces of one machine are two hosts.
std::string host_id();
// The host's name, for messages.
std::string host_name();

}  // namespace starling
