// Addresses: parses and resolves "host:port", lists the interfaces of this host, and identifies the host.
//
// An address as text is "10.0.0.1:4711", "[fe80::1%eth0]:4711" or "node-b:4711". The address of a Unix socket
// is "/path" or "@name". The latter is abstract: it exists only as long as its listener.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

// HostPort is a host, by name or address, and a port.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};

// Parses "host:port" or "[address]:port". Errors: ConfigError if `text` has another form.
HostPort parse_host_port(const std::string& text);

// SocketAddress is an address that a socket can bind or connect to.
class SocketAddress {
 public:
  SocketAddress() = default;
  // Copies the first `bytes` bytes of `address`.
  SocketAddress(const sockaddr* address, socklen_t bytes);

  // The address for system calls.
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  // The size of the address in bytes.
  socklen_t bytes() const { return bytes_; }
  // AF_INET, AF_INET6 or AF_UNIX.
  int family() const { return storage_.ss_family; }
  // The port; 0 for Unix sockets.
  uint16_t port() const;
  // The host: "10.0.0.1", "fe80::1%eth0". For a Unix socket, its path or "@name".
  std::string host() const;
  // The address in the form that parse_address() reads.
  std::string text() const;
  // Whether the address stands for every interface: 0.0.0.0 or [::].
  bool is_any() const;
  // Whether packets to the address stay on this host: a loopback address or a Unix socket.
  bool is_loopback() const;

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

// Returns "host:port", or "[host]:port" for the address of a host by IPv6.
std::string host_port_text(const std::string& host, int port);
// Returns all addresses of the name for TCP, in the system's order. Errors: CommError if there is none.
std::vector<SocketAddress> resolve_all(const HostPort& target);
// Returns the first address of resolve_all(). Errors: as resolve_all().
SocketAddress resolve(const HostPort& target);
// Returns "/path" or "@name" as an address. Errors: ConfigError if the text names nothing or is longer than
// the system allows (107 bytes).
SocketAddress unix_address(const std::string& text);
// Parses "/path" and "@name" by unix_address(), and "host:port" by parse_host_port() and resolve(). Errors:
// those of these functions.
SocketAddress parse_address(const std::string& text);
// Like parse_address(), but returns all addresses of the name. There is at least one.
std::vector<SocketAddress> parse_addresses(const std::string& text);
// Returns the address of this end of a socket. Errors: CommError if it has none.
SocketAddress local_address(int fd);
// Returns the address of the other end of a socket. Errors: CommError if it has none.
SocketAddress remote_address(int fd);

// Interface is a network interface with one of its addresses.
struct Interface {
  std::string name;       // "eth0"
  SocketAddress address;  // with port 0
  bool loopback = false;
};

// Returns the interfaces that are up, with their IPv4 and IPv6 addresses, in the system's order.
std::vector<Interface> list_interfaces();
// Returns the address of this host from which packets to `remote` leave, with port 0. It sends nothing.
// Errors: CommError if there is no route.
SocketAddress local_address_towards(const SocketAddress& remote);
// Like local_address_towards(), for the first of `remotes` that has a route. `remotes` are the addresses of
// one name, at least one. Errors: CommError for the last address if no address has a route.
SocketAddress local_address_towards_any(const std::vector<SocketAddress>& remotes);

// Returns the identity of this host: the boot id, the network namespace and the host's name.
// Ranks with equal host_id share memory and abstract Unix sockets. Two network namespaces of one machine are
// two hosts.
std::string host_id();
// Returns the host's name, for messages.
std::string host_name();

}  // namespace starling
