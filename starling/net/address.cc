#include "starling/net/address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

const sockaddr_un& as_unix(const SocketAddress& a) {
  return *reinterpret_cast<const sockaddr_un*>(a.data());
}
const sockaddr_in& as_v4(const SocketAddress& a) {
  return *reinterpret_cast<const sockaddr_in*>(a.data());
}
const sockaddr_in6& as_v6(const SocketAddress& a) {
  return *reinterpret_cast<const sockaddr_in6*>(a.data());
}

std::string unix_text(const SocketAddress& a) {
  const size_t length = a.bytes() - offsetof(sockaddr_un, sun_path);
  const char* path = as_unix(a).sun_path;
  if (length == 0) return "(unnamed)";
  if (path[0] == '\0') return "@" + std::string(path + 1, length - 1);
  return std::string(path, ::strnlen(path, length));
}

template <typename Get>
SocketAddress address_by(Get get, int fd) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (get(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0)
    throw CommError("the address of a socket is not known: " + reason(errno));
  return SocketAddress(reinterpret_cast<sockaddr*>(&storage), bytes);
}

}  // namespace

HostPort parse_host_port(const std::string& text) {
  const auto refuse = [&](const char* what) -> HostPort {
    throw ConfigError("address",
                      fmt::format("'{}' {}; write host:port, for IPv6 [address]:port", text, what));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return refuse("has no port");
  HostPort result{text.substr(0, colon), 0};
  if (!result.host.empty() && result.host.front() == '[') {
    if (result.host.back() != ']') return refuse("has no ]");
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return refuse("has several colons");
  }
  if (result.host.empty()) return refuse("has no host");
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, result.port);
  if (error != std::errc{} || stop != end) return refuse("has no port of 0 to 65535");
  return result;
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes) : bytes_(bytes) {
  STARLING_CHECK(bytes <= sizeof(storage_));
  std::memcpy(&storage_, address, bytes);
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(as_v4(*this).sin_port);
  if (family() == AF_INET6) return ntohs(as_v6(*this).sin6_port);
  return 0;
}

std::string SocketAddress::host() const {
  if (family() == AF_UNIX) return unix_text(*this);
  char text[NI_MAXHOST];
  if (::getnameinfo(data(), bytes_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "(unknown)";
  return text;
}

std::string SocketAddress::text() const {
  if (family() == AF_UNIX) return host();
  if (family() == AF_INET6) return fmt::format("[{}]:{}", host(), port());
  return fmt::format("{}:{}", host(), port());
}

bool SocketAddress::is_any() const {
  if (family() == AF_INET) return as_v4(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  if (family() != AF_INET6) return false;
  const in6_addr& address = as_v6(*this).sin6_addr;
  in_addr mapped;
  std::memcpy(&mapped, address.s6_addr + 12, sizeof(mapped));
  return IN6_IS_ADDR_UNSPECIFIED(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && mapped.s_addr == 0);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(as_v4(*this).sin_addr.s_addr) >> 24 == 127;
  return family() == AF_UNIX || (family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_v6(*this).sin6_addr));
}

std::string host_port_text(const std::string& host, int port) {
  const bool bare = host.find(':') == std::string::npos || host.starts_with('[');
  return bare ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

SocketAddress resolve(const HostPort& target) {
  return resolve_all(target).front();
}

std::vector<SocketAddress> resolve_all(const HostPort& target) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(target.host.c_str(), std::to_string(target.port).c_str(), &hints, &found);
  if (error != 0)
    throw CommError(fmt::format("{}: no such host ({}); check the name, or give its IP address", target.host,
                                ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, ::freeaddrinfo);
  std::vector<SocketAddress> all;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
    all.emplace_back(one->ai_addr, one->ai_addrlen);
  return all;
}

SocketAddress unix_address(const std::string& text) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool abstract = !text.empty() && text[0] == '@';
  if (text.size() <= (abstract ? 1 : 0) || text.size() >= sizeof(address.sun_path))
    throw ConfigError("address", fmt::format("'{}' cannot name a Unix socket: a name has 1 to {} bytes", text,
                                             sizeof(address.sun_path) - 1));
  std::memcpy(address.sun_path, text.data(), text.size());
  if (abstract) address.sun_path[0] = '\0';
  const size_t bytes = offsetof(sockaddr_un, sun_path) + text.size() + (abstract ? 0 : 1);
  return SocketAddress(reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(bytes));
}

std::vector<SocketAddress> parse_addresses(const std::string& text) {
  if (text.starts_with('@') || text.starts_with('/')) return {unix_address(text)};
  return resolve_all(parse_host_port(text));
}

SocketAddress parse_address(const std::string& text) {
  return parse_addresses(text).front();
}

SocketAddress local_address(int fd) {
  return address_by(::getsockname, fd);
}
SocketAddress remote_address(int fd) {
  return address_by(::getpeername, fd);
}

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw CommError("the network interfaces cannot be listed: " + reason(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(first, ::freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    result.push_back({i->ifa_name, SocketAddress(i->ifa_addr, bytes), (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return result;
}

SocketAddress local_address_towards(const SocketAddress& remote) {
  // Connecting a datagram socket asks the routing table and sends nothing. It needs a port, and any port will
  // do.
  sockaddr_storage target{};
  std::memcpy(&target, remote.data(), remote.bytes());
  const in_port_t port = htons(9);
  if (remote.family() == AF_INET) reinterpret_cast<sockaddr_in*>(&target)->sin_port = port;
  if (remote.family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&target)->sin6_port = port;
  const UniqueFd fd(::socket(remote.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&target), remote.bytes()) != 0)
    throw CommError(fmt::format("no route to {}: {}; check the host's network, or name an interface",
                                remote.host(), reason(errno)));
  const SocketAddress found = local_address(fd.get());
  sockaddr_storage local{};
  std::memcpy(&local, found.data(), found.bytes());
  if (found.family() == AF_INET) reinterpret_cast<sockaddr_in*>(&local)->sin_port = 0;
  if (found.family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&local)->sin6_port = 0;
  return SocketAddress(reinterpret_cast<sockaddr*>(&local), found.bytes());
}

SocketAddress local_address_towards_any(const std::vector<SocketAddress>& remotes) {
  STARLING_CHECK(!remotes.empty());
  for (size_t i = 0; i + 1 < remotes.size(); ++i) {
    try {
      return local_address_towards(remotes[i]);
    } catch (const CommError&) {  // the name has further addresses
    }
  }
  return local_address_towards(remotes.back());
}

std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space{};
  const bool known = ::stat("/proc/self/ns/net", &space) == 0;
  if (boot.empty() && !known) return host_name();
  return fmt::format("{}-{}-{}", host_name(), boot, static_cast<unsigned long long>(space.st_ino));
}

std::string host_name() {
  utsname name{};
  return ::uname(&name) == 0 ? name.nodename : "localhost";
}

}  // namespace starling
