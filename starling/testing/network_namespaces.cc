#include "starling/testing/network_namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <tuple>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

// Runs a shell command. The command must not contain words from outside. Returns its exit status and what it
// printed.
std::pair<int, std::string> shell(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return {127, "no shell"};
  std::string output;
  std::array<char, 256> buffer{};
  while (::fgets(buffer.data(), buffer.size(), pipe)) output += buffer.data();
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, output};
}

void must(const std::string& command) {
  if (const auto [status, output] = shell(command); status != 0)
    throw Error(ErrorCode::kInternal,
                fmt::format("network namespaces: `{}` gave {}: {}", command, status, output));
}

// Starts a shell that removes the namespaces of this prefix. It does so once it reads a line, or once no
// process holds the other end of its pipe.
std::FILE* open_keeper(const std::string& prefix) {
  const std::string script = fmt::format(
      "exec >/dev/null 2>&1; trap '' INT TERM HUP; read line;"
      " for name in $(ip netns list | grep -oE '^{}-(bridge|host[0-9]+)');"
      " do kill -9 $(ip netns pids $name); ip netns del $name; done",
      prefix);
  std::FILE* keeper = ::popen(script.c_str(), "we");
  if (keeper == nullptr) throw Error(ErrorCode::kInternal, "network namespaces: no shell");
  return keeper;
}

void end_keeper(std::FILE* keeper) {
  std::fputs("\n", keeper);  // children of this process may hold the pipe, too
  ::pclose(keeper);
}

}  // namespace

std::string NetworkNamespaces::unavailable() {
  const auto name = fmt::format("starling-{}-probe", ::getpid());
  auto [status, output] = shell("ip netns add " + name);
  if (status == 0) {
    std::tie(status, output) = shell(fmt::format("ip -n {} link add br0 type bridge", name));
    shell("ip netns del " + name);
  }
  return status == 0 ? "" : "network namespaces are not permitted here: " + output;
}

NetworkNamespaces::NetworkNamespaces(int hosts)
    : prefix_(fmt::format("starling-{}", ::getpid())),
      hosts_(hosts),
      keeper_(open_keeper(prefix_), end_keeper) {
  STARLING_CHECK(hosts > 0 && hosts <= 200, "{} hosts", hosts);
  const auto bridge = bridge_name();
  must("ip netns add " + bridge);
  must(fmt::format("ip -n {} link add br0 type bridge && ip -n {} link set br0 up", bridge, bridge));
  for (int host = 0; host < hosts; ++host) {
    const auto name = name_of(host);
    must("ip netns add " + name);
    must(fmt::format("ip -n {} link set lo up", name));
    must(fmt::format("ip -n {} link add port{} type veth peer name eth0 netns {}", bridge, host, name));
    must(fmt::format("ip -n {} link set port{} master br0 up", bridge, host));
    must(fmt::format("ip -n {} addr add {}/24 dev eth0", name, address(host)));
    must(fmt::format("ip -n {} link set eth0 up", name));
  }
}

NetworkNamespaces::~NetworkNamespaces() = default;

std::string NetworkNamespaces::address(int host) const {
  return fmt::format("10.99.0.{}", host + 1);
}

void NetworkNamespaces::enter(int host) const {
  const std::string space = name_of(host);
  const UniqueFd fd(::open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || ::setns(fd.get(), CLONE_NEWNET) != 0)
    throw Error(ErrorCode::kInternal, "cannot enter the namespace " + space);
}

std::vector<std::string> NetworkNamespaces::command(int host,
                                                    const std::vector<std::string>& arguments) const {
  std::vector<std::string> line{"ip", "netns", "exec", name_of(host)};
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

void NetworkNamespaces::limit_rate(int mbit) {
  for (int host = 0; host < hosts_; ++host) {
    const std::string shape = fmt::format("root tbf rate {}mbit burst 256kb latency 50ms", mbit);
    must(fmt::format("tc -n {} qdisc replace dev eth0 {}", name_of(host), shape));
    must(fmt::format("tc -n {} qdisc replace dev port{} {}", bridge_name(), host, shape));
  }
}

void NetworkNamespaces::unplug(int host) {
  must(fmt::format("ip -n {} link set port{} down", bridge_name(), host));
}

std::string NetworkNamespaces::name_of(int host) const {
  return fmt::format("{}-host{}", prefix_, host);
}
std::string NetworkNamespaces::bridge_name() const {
  return prefix_ + "-bridge";
}

}  // namespace starling
